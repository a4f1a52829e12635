"""A report as one page: no script, nothing fetched, light or dark as the reader's system is."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from wherry.spark.pipelines.plots import DARK, LIGHT, Plot, size, span
from wherry.spark.pipelines.report import Report

STYLE = f"""
:root {{ color-scheme: light dark; --paper: {LIGHT.paper}; --ink: {LIGHT.ink}; --faint: {LIGHT.faint};
  --soft: #f4f6f8; --quiet: #5b6773; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: {DARK.paper}; --ink: {DARK.ink}; --faint: {DARK.faint};
  --soft: #1c2229; --quiet: #9aa5b1; }} }}
* {{ box-sizing: border-box }}
body {{ margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 1.6rem; margin: 0 }}
h2 {{ font-size: 1.15rem; margin: 2.5rem 0 .5rem }}
p {{ margin: .25rem 0; color: var(--quiet) }}
dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.5rem 0 0 }}
dl div {{ background: var(--soft); border-radius: .5rem; padding: .75rem 1rem }}
dt {{ color: var(--quiet); font-size: .85rem }}
dd {{ margin: 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--faint); white-space: nowrap }}
th {{ font-weight: 600; color: var(--quiet) }}
.words {{ text-align: left }}
td.words {{ white-space: normal; overflow-wrap: anywhere }}
img {{ display: block; width: 100%; height: auto; margin: .5rem 0; border-radius: .5rem }}
"""

Cell = str | int | float


def page(report: Report, plots: Sequence[Plot]) -> str:
    """The whole document."""
    body = "".join([_head(report), *_sections(report, {plot.name: plot for plot in plots})])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Traffic of {escape(report.broker)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    seconds = max(1, len({each.minute_ms for each in report.minutes})) * 60
    messages = sum(each.messages for each in report.topics)
    tiles = [
        ("messages", f"{messages:,}"),
        ("payloads", size(sum(each.bytes for each in report.topics))),
        ("a second, while there was traffic", f"{messages / seconds:,.1f}"),
        ("topics", f"{len(report.topics):,}"),
        ("dead letters", f"{sum(each.messages for each in report.dead):,}"),
    ]
    if report.delivery_ms is not None:
        tiles.append(("handed over within, p99", span(report.delivery_ms.p99)))
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    since = "all that is in the log" if report.start == "earliest" else f"published since {report.start}"
    return (
        f"<h1>Traffic</h1>\n<p>{escape(report.broker)} · {escape(since)} · made {moment(report.made_ms)} UTC</p>\n"
        f"<dl>{listed}</dl>\n"
    )


def _sections(report: Report, plots: dict[str, Plot]) -> Iterable[str]:
    for name in ("rate", "volume"):
        yield _picture(plots, name)
    yield _table(
        "Topics",
        ("topic", "messages", "payloads", "keys", "first", "last", "size p50", "p99", "age p50", "p99"),
        [
            (
                *(each.name, each.messages, size(each.bytes), each.keys, moment(each.first_ms), moment(each.last_ms)),
                *(size(each.size.p50), size(each.size.p99), span(each.age_ms.p50), span(each.age_ms.p99)),
            )
            for each in report.topics
        ],
        "Age is from the publish until this report, of what is in the log. Distinct keys are estimated.",
    )
    for name in ("sizes", "latency", "keys"):
        yield _picture(plots, name)
    yield _table(
        "Hot keys",
        ("topic", "key", "messages", "payloads", "share"),
        [(each.topic, each.key, each.messages, size(each.bytes), f"{each.share:.1%}") for each in report.keys],
        words=2,
    )
    yield _picture(plots, "dead")
    yield _table(
        "Dead letters",
        ("topic", "subscription", "reason", "error", "messages", "attempts", "died after p50", "p99"),
        [
            (
                *(each.topic, each.subscription, each.reason, each.error, each.messages, f"{each.attempts:,.1f}"),
                *(span(each.took_ms.p50), span(each.took_ms.p99)),
            )
            for each in report.dead
        ],
        words=4,
    )
    yield _table(
        "Subscriptions",
        ("topic", "subscription", "ready", "leased", "scheduled", "dead", "lag", "oldest"),
        [
            (each.topic, each.name, each.ready, each.leased, each.scheduled, each.dead, each.lag, span(each.lag_ms))
            for each in report.subscriptions
        ],
        words=2,
    )


def _picture(plots: dict[str, Plot], name: str) -> str:
    plot = plots.get(name)
    if plot is None:
        return ""
    light, dark = (f"data:image/png;base64,{b64encode(plot.png[theme.name]).decode()}" for theme in (LIGHT, DARK))
    alt = escape(f"{plot.title}. {plot.about}", quote=True)
    other = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    return f'<picture>{other}<img src="{light}" alt="{alt}"></picture>\n'


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], about: str = "", words: int = 1) -> str:
    """The first columns are words, the others figures."""
    if not rows:
        return ""
    kinds = [' class="words"'] * words + [""] * (len(heads) - words)
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True))
    lines = "".join(f"<tr>{_cells(kinds, row)}</tr>\n" for row in rows)
    told = f"<p>{escape(about)}</p>\n" if about else ""
    table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table>"
    return f'<h2>{escape(title)}</h2>\n{told}<div class="wide">{table}</div>\n'


def _cells(kinds: Sequence[str], row: Sequence[Cell]) -> str:
    return "".join(f"<td{kind}>{escape(_cell(cell))}</td>" for kind, cell in zip(kinds, row, strict=True))


def _cell(value: Cell) -> str:
    return f"{value:,}" if isinstance(value, int | float) else value


def moment(ms: int) -> str:
    """An instant in UTC."""
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
