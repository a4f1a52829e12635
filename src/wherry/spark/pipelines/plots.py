"""Plots of a report, each in light and in dark. Matplotlib draws; nothing is fetched from anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, NamedTuple

from wherry.spark.pipelines.report import Percentiles, Report

SERIES_MAX = 6
"""Topics with a colour of their own; the rest is one more."""
BARS_MAX = 12
LABEL_CHARS_MAX = 34
DPI = 144
WIDTH = 9.0
SPANS_MS = (1.0, 10.0, 1e2, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9)


class Theme(NamedTuple):
    """Colours; those of the series can be told apart by people who see colours differently."""

    name: str
    paper: str
    ink: str
    faint: str
    series: tuple[str, ...]


LIGHT = Theme(
    "light", "#ffffff", "#1f2933", "#d5dbe1", ("#0b6fb8", "#d9640c", "#2a8c5b", "#a0408f", "#b58900", "#6b7280")
)
DARK = Theme(
    "dark", "#14181d", "#e4e9ee", "#36404a", ("#5db2f0", "#f59a52", "#5fce97", "#dc86ce", "#e3c04b", "#9aa5b1")
)
THEMES = (LIGHT, DARK)


class Plot(NamedTuple):
    """A picture, as PNG in each theme."""

    name: str
    title: str
    about: str
    png: dict[str, bytes]


def plots(report: Report) -> list[Plot]:
    """Those that there is something to see in."""
    drawers: list[tuple[str, str, str, Callable[[Report, Theme], Any]]] = [
        ("rate", "Messages a second", "Published, mean of each minute, by topic.", _rate),
        ("volume", "Bytes a second", "Payloads, mean of each minute, by topic.", _volume),
        ("sizes", "Sizes of messages", "Payload bytes: median, 90 and 99 of a hundred, largest.", _sizes),
        ("latency", "Time", "Age of what is in the log, and what dead letters took until they died.", _latency),
        ("keys", "Hot keys", "Keys with the most messages, and their share of the topic.", _keys),
        ("dead", "Dead letters", "By reason.", _dead),
    ]
    made = []
    for name, title, about, draw in drawers:
        if _has(report, name):
            made.append(Plot(name, title, about, {theme.name: _png(draw, report, theme, title) for theme in THEMES}))
    return made


def _has(report: Report, name: str) -> bool:
    return bool({"keys": report.keys, "dead": report.dead}.get(name, report.topics))


@contextmanager
def figure(theme: Theme, title: str, height: float) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, without what nobody reads."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib import rc_context  # noqa: PLC0415 - heavy
    from matplotlib.figure import Figure  # noqa: PLC0415

    colours: dict[Any, Any] = {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper),
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.ink),
        "axes.edgecolor": theme.faint,
        "grid.color": theme.faint,
    }
    plain: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
    }
    with rc_context({**colours, **plain}):
        drawn = Figure(figsize=(WIDTH, height), layout="constrained", dpi=DPI)
        layout: Any = drawn.get_layout_engine()
        layout.set(w_pad=0.16, h_pad=0.14)
        axes = drawn.add_subplot()
        axes.set_title(title, fontsize=13, fontweight="bold", pad=12)
        yield drawn, axes


def png_of(drawn: Any) -> bytes:
    """The picture as a file."""
    stream = BytesIO()
    drawn.savefig(stream, format="png")
    return stream.getvalue()


def _png(draw: Callable[[Report, Theme], Any], report: Report, theme: Theme, title: str) -> bytes:
    return png_of(draw(report, theme))


# ------------------------------------------------------------------------------------------------------- over time


def _rate(report: Report, theme: Theme) -> Any:
    return _over_time(report, theme, "Messages a second", lambda minute: minute.messages / 60, "{:,.4g}")


def _volume(report: Report, theme: Theme) -> Any:
    return _over_time(report, theme, "Bytes a second", lambda minute: minute.bytes / 60, None)


def _over_time(report: Report, theme: Theme, title: str, value: Callable[[Any], float], form: str | None) -> Any:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415

    sums: dict[str, float] = {}
    for each in report.minutes:
        sums[each.topic] = sums.get(each.topic, 0.0) + value(each)
    ranked = sorted(sums, key=lambda topic: -sums[topic])
    named = ranked if len(ranked) <= SERIES_MAX else ranked[: SERIES_MAX - 1]
    moments = _minutes(report)
    series = {name: dict.fromkeys(moments, 0.0) for name in (*named, *(["others"] if len(ranked) > len(named) else []))}
    for each in report.minutes:
        series[each.topic if each.topic in series else "others"][each.minute_ms] += value(each)
    with figure(theme, title, 3.4) as (drawn, axes):
        times = [datetime.fromtimestamp(moment / 1_000, UTC) for moment in moments]
        if len(times) == 1:
            _bars_of_one_minute(axes, theme, {name: next(iter(values.values())) for name, values in series.items()})
        else:
            for colour, (name, values) in zip(theme.series, series.items(), strict=False):
                heights = list(values.values())
                axes.plot(times, heights, color=colour, linewidth=1.8, label=short(name))
                axes.fill_between(times, heights, color=colour, alpha=0.1, linewidth=0)
            _time_axis(axes, times)
            axes.set_xlim(times[0], times[-1])
            _legend(axes, title)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: form.format(y) if form else size(y)))
        axes.grid(axis="y", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, pad=7)
        axes.spines["left"].set_visible(False)
        return drawn


def _minutes(report: Report) -> list[int]:
    """All minutes from the first to the last, those without traffic too; thinned out if they are very many."""
    found = [each.minute_ms for each in report.minutes]
    every = list(range(min(found), max(found) + 60_000, 60_000))
    return every if len(every) <= 20_000 else sorted(set(found))


def _bars_of_one_minute(axes: Any, theme: Theme, values: dict[str, float]) -> None:
    axes.bar([short(name) for name in values], list(values.values()), color=theme.series[0], width=0.5)


def _time_axis(axes: Any, times: Sequence[datetime]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415

    locator = AutoDateLocator(minticks=3, maxticks=8, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    written = ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(written)
    first, last = (f"{moment:%Y-%m-%d}" for moment in (times[0], times[-1]))
    axes.set_xlabel(f"{first if first == last else f'{first} to {last}'}, UTC", loc="left", fontsize=9, labelpad=6)


# -------------------------------------------------------------------------------------------------------- percentiles


def _sizes(report: Report, theme: Theme) -> Any:
    rows = [(each.name, each.size) for each in sorted(report.topics, key=lambda each: -each.size.p99)]
    return _ranges(theme, "Sizes of messages", rows[:BARS_MAX], size, [10.0**power for power in range(10)])


def _latency(report: Report, theme: Theme) -> Any:
    rows = [(f"{each.name}: age in the log", each.age_ms) for each in report.topics]
    rows += [(f"{each.topic}: until dead ({each.reason})", each.took_ms) for each in report.dead]
    if report.delivery_ms is not None:
        rows.insert(0, ("all topics: until handed over", report.delivery_ms))
    return _ranges(theme, "Time from the publish", rows[:BARS_MAX], span, SPANS_MS)


def _ranges(
    theme: Theme,
    title: str,
    rows: Sequence[tuple[str, Percentiles]],
    told: Callable[[float], str],
    ticks: Sequence[float],
) -> Any:
    """A line from the median to the largest for each row, on a scale of powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    marks = (("p50", "o"), ("p90", "s"), ("p99", "D"), ("max", "|"))
    with figure(theme, title, 1.5 + 0.42 * len(rows)) as (drawn, axes):
        for place, (_, values) in enumerate(rows):
            low, high = max(values.p50, 1.0), max(values.max, 1.0)
            axes.plot([low, high], [place, place], color=theme.series[0], linewidth=2, alpha=0.45, zorder=2)
        for (name, mark), colour in zip(marks, theme.series, strict=False):
            found = [max(getattr(values, name), 1.0) for _, values in rows]
            axes.scatter(found, range(len(rows)), marker=mark, s=46, color=colour, label=name, zorder=3)
        axes.set_xscale("log")
        low, high = min(max(values.p50, 1.0) for _, values in rows), max(max(values.max, 1.0) for _, values in rows)
        axes.set_xlim(low / 2, high * 2)
        axes.xaxis.set_major_locator(FixedLocator(_inside(ticks, low / 2, high * 2)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: told(x)))
        axes.xaxis.set_minor_locator(NullLocator())
        _rows(axes, [name for name, _ in rows])
        _legend(axes, title)
        return drawn


def _inside(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """Round values; where fewer than two of them fit, halves and fifths too."""
    found = [tick for tick in ticks if low <= tick <= high]
    finer = sorted(tick * part for tick in (0.1, *ticks) for part in (1, 2, 5))
    return found if len(found) > 1 else [tick for tick in finer if low <= tick <= high]


def _legend(axes: Any, title: str) -> None:
    """In one line between title and picture."""
    axes.legend(
        frameon=False,
        ncols=SERIES_MAX,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=0,
        borderpad=0.2,
        columnspacing=1.4,
        handlelength=1.2,
        fontsize=9,
    )
    axes.set_title(title, fontsize=13, fontweight="bold", pad=26)


# --------------------------------------------------------------------------------------------------------------- bars


def _keys(report: Report, theme: Theme) -> Any:
    hot = sorted(report.keys, key=lambda each: -each.messages)[:BARS_MAX]
    rows = [(f"{short(each.topic, 16)}  {short(each.key, 16)}", each.messages, f"{each.share:.1%}") for each in hot]
    return _bars(theme, "Hot keys", rows, theme.series[0], "messages; share of the topic")


def _dead(report: Report, theme: Theme) -> Any:
    rows = [
        (f"{short(each.topic, 14)}  {each.error or each.reason}", each.messages, each.reason) for each in report.dead
    ]
    return _bars(theme, "Dead letters", rows[:BARS_MAX], theme.series[1], "messages, by topic and error")


def _bars(theme: Theme, title: str, rows: Sequence[tuple[str, int, str]], colour: str, about: str) -> Any:
    with figure(theme, title, 1.2 + 0.36 * len(rows)) as (drawn, axes):
        axes.barh(range(len(rows)), [count for _, count, _ in rows], color=colour, height=0.62)
        largest = max(count for _, count, _ in rows)
        for place, (_, count, note) in enumerate(rows):
            axes.text(count + largest * 0.01, place, f"{count:,}   {note}", va="center", fontsize=9)
        axes.set_xlim(0, largest * 1.22)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        _rows(axes, [name for name, _, _ in rows], grid=False)
        axes.set_title(f"{title}  ", fontsize=13, fontweight="bold", pad=24)
        axes.text(0, 1.02, about, transform=axes.transAxes, fontsize=9, alpha=0.8)
        return drawn


def _rows(axes: Any, names: Sequence[str], *, grid: bool = True) -> None:
    """A row for each name, the first on top."""
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(length=0, pad=7)
    axes.spines["left"].set_visible(False)
    if grid:
        axes.grid(axis="x", linewidth=0.7)
        axes.set_axisbelow(True)


# -------------------------------------------------------------------------------------------------------------- words


def short(text: str, most: int = LABEL_CHARS_MAX) -> str:
    """A label that leaves room for the picture; a `$` is a dollar, not the beginning of a formula."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(each if each.isprintable() else "�" for each in cut).replace("$", r"\$")


def size(count: float) -> str:
    """Bytes in few words."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:,.3g} {unit}"
        count /= 1_000
    return f"{count:,.3g} TB"


def span(ms: float) -> str:
    """A time in few words."""
    for unit, length, most in (("ms", 1.0, 1e3), ("s", 1e3, 6e4), ("min", 6e4, 3.6e6), ("h", 3.6e6, 8.64e7)):
        if ms < most:
            return f"{ms / length:,.3g} {unit}"
    return f"{ms / 8.64e7:,.3g} d"
