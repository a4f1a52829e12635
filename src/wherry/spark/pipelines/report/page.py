"""A report as one page: no script, nothing fetched, light or dark as the reader's system, for any width."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape

from wherry.spark.pipelines.report.plots import (
    DARK,
    LIGHT,
    Plot,
    minute,
    size,
    span,
)
from wherry.spark.pipelines.report.report import Report

ROWS_MAX = 100
"""The most rows of a table; `report.json` has all."""

NARROW_PX = 640
"""The most pixels of a window that gets the plots for a phone."""

STYLE = f"""
:root {{ color-scheme: light dark; --paper: {LIGHT.paper}; --ink: {LIGHT.ink}; --faint: {LIGHT.faint};
  --soft: #f4f6f8; --quiet: #5b6773; --link: {LIGHT.series[0]} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: {DARK.paper}; --ink: {DARK.ink}; --faint: {DARK.faint};
  --soft: #1c2229; --quiet: #9aa5b1; --link: {DARK.series[0]} }} }}
* {{ box-sizing: border-box }}
body {{ margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 70rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 1.6rem; margin: 0 }}
h2 {{ font-size: 1.2rem; margin: 0 0 .25rem }}
p {{ margin: .25rem 0; color: var(--quiet); overflow-wrap: anywhere }}
a {{ color: var(--link) }}
nav {{ display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 1.25rem 0 0 }}
section {{ margin: 2.5rem 0 0; padding: 1.5rem 0 0; border-top: 1px solid var(--faint); scroll-margin-top: 1rem }}
dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.5rem 0 0 }}
dl div {{ background: var(--soft); border-radius: .5rem; padding: .75rem 1rem }}
dt {{ color: var(--quiet); font-size: .85rem; line-height: 1.3 }}
dd {{ margin: .15rem 0 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums }}
.wide {{ overflow-x: auto; margin: .75rem 0 0 }}
table {{ border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--faint); white-space: nowrap;
  vertical-align: top }}
th {{ font-weight: 600; color: var(--quiet) }}
th:first-child, td:first-child {{ padding-left: 0 }}
.words {{ text-align: left }}
td.words {{ white-space: normal; overflow-wrap: anywhere; min-width: 8.5rem }}
td.words:first-child {{ position: sticky; left: 0; background: var(--paper) }}
img {{ display: block; width: 100%; height: auto; margin: .75rem 0 }}
@media (max-width: {NARROW_PX}px) {{ body {{ padding: 1.25rem .9rem 3rem }}
  dl {{ grid-template-columns: 1fr 1fr; gap: .5rem }} dl div {{ padding: .6rem .75rem }} dd {{ font-size: 1.15rem }} }}
@media print {{ section {{ break-inside: avoid }} nav {{ display: none }} }}
"""

Cell = str | int | float


def page(report: Report, plots: Sequence[Plot]) -> str:
    """Return the whole document."""
    parts = [(title, body) for title, body in _sections(report, {plot.name: plot for plot in plots}) if body]
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title, _ in parts)
    sections = "".join(
        f'<section id="{_anchor(title)}">\n<h2>{escape(title)}</h2>\n{body}</section>\n' for title, body in parts
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Traffic of {escape(report.broker)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{_head(report)}{f'<nav>{links}</nav>' if links else '<p>There was no traffic.</p>'}\n"
        f"{sections}</body>\n</html>\n"
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _head(report: Report) -> str:
    slots = {each.at_ms for each in report.slots}
    messages = sum(each.messages for each in report.topics)
    tiles = [
        ("messages", f"{messages:,}"),
        ("payloads", size(sum(each.bytes for each in report.topics))),
        ("a second, while there was traffic", f"{messages / max(1.0, sum(map(report.seconds, slots))):,.1f}"),
        ("topics", f"{len(report.topics):,}"),
        ("dead letters", f"{sum(each.messages for each in report.dead):,}"),
    ]
    if report.delivery_ms is not None:
        tiles.append(("handed over within, p99", span(report.delivery_ms.p99)))
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    since = "all that is in the log" if report.since_ms is None else f"since {minute(report.since_ms)} UTC"
    return (
        f"<h1>Traffic</h1>\n<p>{escape(report.broker)} · {escape(since)} · made {minute(report.made_ms)} UTC</p>\n"
        f"<dl>{listed}</dl>\n"
    )


def _sections(report: Report, plots: dict[str, Plot]) -> Iterable[tuple[str, str]]:
    """Yield titles, and the content below each; a section without content is empty."""
    topics = _table(
        ("topic", "messages", "payloads", "keys", "first", "last", "size p50", "p99", "age p50", "p99"),
        [
            (
                *(each.name, each.messages, size(each.bytes), each.keys, minute(each.first_ms), minute(each.last_ms)),
                *(size(each.size.p50), size(each.size.p99), span(each.age_ms.p50), span(each.age_ms.p99)),
            )
            for each in sorted(report.topics, key=lambda each: (-each.messages, each.name))
        ],
    )
    keys = _table(
        ("topic", "key", "messages", "payloads", "share"),
        [(each.topic, each.key, each.messages, size(each.bytes), f"{each.share:.1%}") for each in report.keys],
        words=2,
    )
    dead = _table(
        ("topic", "subscription", "reason", "errors", "messages", "attempts", "died after p50", "p99"),
        [
            (
                *(each.topic, each.subscription, each.reason, _errors(each.errors), each.messages),
                *(f"{each.attempts:,.1f}", span(each.took_ms.p50), span(each.took_ms.p99)),
            )
            for each in report.dead
        ],
        words=4,
    )
    subscriptions = _table(
        ("topic", "subscription", "ready", "leased", "scheduled", "dead", "lag", "oldest"),
        [
            (each.topic, each.name, each.ready, each.leased, each.scheduled, each.dead, each.lag, span(each.lag_ms))
            for each in sorted(report.subscriptions, key=lambda each: (-each.lag, each.topic, each.name))
        ],
        words=2,
    )
    yield "Rates", _pictures(plots, "rate", "volume")
    yield "Topics", _about("Age is from the publish until this report, of what is in the log.", topics)
    yield "Sizes and times", _pictures(plots, "sizes", "latency")
    yield "Hot keys", _pictures(plots, "keys", "hot") + keys
    yield "Dead letters", _pictures(plots, "dead", "dying") + dead
    yield "Subscriptions", subscriptions


def _about(words: str, table: str) -> str:
    return f"<p>{escape(words)}</p>\n{table}" if table else ""


def _errors(errors: Sequence[tuple[str, int]]) -> str:
    return "; ".join(f"{error} ({count:,})" for error, count in errors)


def _pictures(plots: dict[str, Plot], *names: str) -> str:
    return "".join(_picture(plots[name]) for name in names if name in plots)


def _picture(plot: Plot) -> str:
    """Return a picture in all themes, of which the browser chooses one."""
    alt = escape(f"{plot.title}. {plot.about}", quote=True)
    dark, narrow = "(prefers-color-scheme: dark)", f"(max-width: {NARROW_PX}px)"
    others = "".join(
        f'<source media="{media}" srcset="{_data(plot, theme)}">'
        for theme, media in (
            (DARK.narrow().name, f"{dark} and {narrow}"),
            (LIGHT.narrow().name, narrow),
            (DARK.name, dark),
        )
    )
    return f'<picture>{others}<img src="{_data(plot, LIGHT.name)}" alt="{alt}"></picture>\n'


def _data(plot: Plot, theme: str) -> str:
    return f"data:image/png;base64,{b64encode(plot.png[theme]).decode()}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], words: int = 1) -> str:
    """Return a table whose first columns are words and the others figures; an empty text without rows."""
    if not rows:
        return ""
    kinds = [' class="words"'] * words + [""] * (len(heads) - words)
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True))
    lines = "".join(f"<tr>{_cells(kinds, row)}</tr>\n" for row in rows[:ROWS_MAX])
    more = f"<p>{len(rows) - ROWS_MAX:,} more are in report.json.</p>\n" if len(rows) > ROWS_MAX else ""
    table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table>"
    return f'<div class="wide">{table}</div>\n{more}'


def _cells(kinds: Sequence[str], row: Sequence[Cell]) -> str:
    return "".join(f"<td{kind}>{escape(_cell(cell))}</td>" for kind, cell in zip(kinds, row, strict=True))


def _cell(value: Cell) -> str:
    return f"{value:,}" if isinstance(value, int | float) else value
