"""The plots of a report as PNG, light or dark, for a page or a phone. matplotlib draws them; nothing is fetched."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any, NamedTuple

from wherry.spark.pipelines.report.report import OTHERS, Percentiles, Report

SERIES_MAX = 6
"""Lines with a colour of their own; all others are one more line."""
BARS_MAX = 12
DPI = 144
WIDE, NARROW = 9.0, 4.6
"""Inches: the width of a page, and of a phone held upright, where the same text needs twice the share."""

LINE = 0.19
"""Inches: the height of a line of a legend."""

STAIRS_MAX = 40
"""Up to this many slots each is drawn as a step, as wide as the slot; with more, as points of a line."""

APART = 1.6
"""Ticks on a logarithmic scale are at least this factor apart."""

SPANS_MS = (0.1, 1.0, 10.0, 1e2, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9)
SIZES = tuple(float(1 << power) for power in range(0, 41, 4))


class Theme(NamedTuple):
    """Paper and colours; people who see colours differently can distinguish those of the series."""

    name: str
    paper: str
    ink: str
    faint: str
    series: tuple[str, ...]
    width: float = WIDE

    @property
    def label_chars(self) -> int:
        """The most characters of a label at the side: about a third of the width, and enough to distinguish names."""
        return max(24, int(self.width * 3.7))

    def narrow(self) -> Theme:
        """Return the same theme for a phone."""
        return self._replace(name=f"{self.name}-narrow", width=NARROW)


LIGHT = Theme(
    "light", "#ffffff", "#1f2933", "#d5dbe1", ("#0b6fb8", "#d9640c", "#2a8c5b", "#a0408f", "#b58900", "#6b7280")
)
DARK = Theme(
    "dark", "#14181d", "#e4e9ee", "#36404a", ("#5db2f0", "#f59a52", "#5fce97", "#dc86ce", "#e3c04b", "#9aa5b1")
)
THEMES = (LIGHT, DARK, LIGHT.narrow(), DARK.narrow())


class Plot(NamedTuple):
    """A picture, as PNG in each theme."""

    name: str
    title: str
    about: str
    png: dict[str, bytes]


Series = Mapping[str, Mapping[int, float]]
"""Values by the start of their slot, by name."""


def plots(report: Report) -> list[Plot]:
    """Return the plots that have something to show."""
    slot = span(report.step_ms)
    drawers: list[tuple[str, str, str, object, Callable[[Report, Theme], bytes]]] = [
        ("rate", "Messages a second", f"Published, mean of each {slot}, by topic.", report.slots, _rate),
        ("volume", "Bytes a second", f"Payloads, mean of each {slot}, by topic.", report.slots, _volume),
        ("sizes", "Sizes of messages", "Payloads: median, 90 and 99 of a hundred, largest.", report.topics, _sizes),
        (
            "latency",
            "Time from the publish",
            "Age of what is in the log, and what dead letters took until they died.",
            report.topics or report.dead,
            _latency,
        ),
        ("keys", "Messages by key", "The hottest keys, and their share of the topic.", report.keys, _keys),
        ("hot", "Messages a second by key", f"The hottest keys, mean of each {slot}.", report.keys, _hot),
        ("dead", "Dead letters by reason", "With the most frequent error of each.", report.dead, _dead),
        (
            "dying",
            "Time until dead",
            f"99 of a hundred dead letters took no longer, by topic and {span(report.dying_step_ms)} of their death.",
            report.dying,
            _dying,
        ),
    ]
    return [
        Plot(name, title, about, {theme.name: draw(report, theme) for theme in THEMES})
        for name, title, about, something, draw in drawers
        if something
    ]


@contextmanager
def figure(theme: Theme, title: str, height: float) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes. Draw and save inside the `with`: the theme ends with it."""
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
        "text.parse_math": False,  # a `$` in a name is a dollar sign
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
    }
    with rc_context({**colours, **plain}):
        drawn = Figure(figsize=(theme.width, height), layout="constrained", dpi=DPI)
        layout: Any = drawn.get_layout_engine()
        layout.set(w_pad=0.16 if theme.width == WIDE else 0.06, h_pad=0.14)
        axes = drawn.add_subplot()
        axes.set_title(title, fontsize=13, fontweight="bold", pad=12)
        yield drawn, axes


def png_of(drawn: Any) -> bytes:
    """Return the figure as a PNG file."""
    stream = BytesIO()
    drawn.savefig(stream, format="png")
    return stream.getvalue()


# ------------------------------------------------------------------------------------------------------- over time


def _rate(report: Report, theme: Theme) -> bytes:
    series = _by_topic(report, lambda slot: slot.messages)
    return _over_time(theme, "Messages a second", series, report.step_ms, number)


def _volume(report: Report, theme: Theme) -> bytes:
    series = _by_topic(report, lambda slot: slot.bytes)
    return _over_time(theme, "Bytes a second", series, report.step_ms, size, in_powers=True)


def _hot(report: Report, theme: Theme) -> bytes:
    several = len({each.topic for each in report.keys}) > 1
    series = {}
    for each in sorted(report.keys, key=lambda each: -each.messages)[:SERIES_MAX]:
        name = f"{cut(each.topic, 14)}  {cut(each.key, 18)}" if several else cut(each.key, 24)
        series[name] = {at_ms: count / report.seconds(at_ms) for at_ms, count in each.slots}
    return _over_time(theme, "Messages a second by key", series, report.step_ms, number)


def _dying(report: Report, theme: Theme) -> bytes:
    sums: dict[str, int] = {}
    for each in report.dying:
        sums[each.topic] = sums.get(each.topic, 0) + each.messages
    named = sorted(sums, key=lambda topic: (-sums[topic], topic))[:SERIES_MAX]
    series = {name: {each.at_ms: each.took_ms.p99 for each in report.dying if each.topic == name} for name in named}
    return _over_time(theme, "Time until dead, p99", series, report.dying_step_ms, span, sparse=True)


def _by_topic(report: Report, value: Callable[[Any], float]) -> Series:
    """Return values a second of the topics with the most, and of the others together."""
    sums: dict[str, float] = {}
    for each in report.slots:
        sums[each.topic] = sums.get(each.topic, 0.0) + value(each)
    ranked = sorted((topic for topic in sums if topic != OTHERS), key=lambda topic: (-sums[topic], topic))
    named = ranked if len(sums) <= SERIES_MAX and OTHERS not in sums else ranked[: SERIES_MAX - 1]
    series: dict[str, dict[int, float]] = {name: {} for name in named}
    for each in report.slots:
        of = series.setdefault(each.topic if each.topic in named else "others", {})
        of[each.at_ms] = of.get(each.at_ms, 0.0) + value(each) / report.seconds(each.at_ms)
    return series


def _over_time(
    theme: Theme,
    title: str,
    series: Series,
    step_ms: int,
    as_text: Callable[[float], str],
    *,
    in_powers: bool = False,
    sparse: bool = False,
) -> bytes:
    """Draw a line for each series. A slot without a value is zero, or with `sparse` a gap."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator  # noqa: PLC0415

    found = [at_ms for values in series.values() for at_ms in values]
    moments = range(min(found), max(found) + step_ms, step_ms)
    if len(moments) == 1:
        rows = [(name, next(iter(values.values()), 0.0), "") for name, values in series.items()]
        return _bars(theme, title, rows, theme.series[0], f"{minute(moments[0])} UTC, {span(step_ms)}", as_text)
    labels = [cut(name, theme.label_chars) for name in series]
    stairs = len(moments) <= STAIRS_MAX and not sparse
    with figure(theme, title, 3.2 + LINE * _lines(theme, labels)) as (drawn, axes):
        times = [_time(at_ms) for at_ms in (*moments, moments[-1] + step_ms)]
        middles = [_time(at_ms + step_ms // 2) for at_ms in moments]
        for colour, label, values in zip(theme.series, labels, series.values(), strict=False):
            heights = [values.get(at_ms, math.nan if sparse else 0.0) for at_ms in moments]
            across, up = (times, [*heights, heights[-1]]) if stairs else (middles, heights)
            style: dict[str, Any] = {"drawstyle": "steps-post"} if stairs else {"marker": "o" if sparse else None}
            axes.plot(across, up, color=colour, linewidth=1.8, label=label, markersize=3.5, **style)
            if not sparse:
                step = "post" if stairs else None
                axes.fill_between(across, up, color=colour, alpha=0.1, linewidth=0, step=step)
        _time_axis(axes, theme, times if stairs else middles)
        _legend(axes, theme, title, labels)
        axes.set_ylim(bottom=0)
        top = max(value for values in series.values() for value in values.values())
        if in_powers and top > 0:
            axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(top / 5))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: as_text(y)))
        axes.grid(axis="y", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, pad=7)
        axes.spines["left"].set_visible(False)
        return png_of(drawn)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def _time_axis(axes: Any, theme: Theme, times: Sequence[datetime]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, MinuteLocator  # noqa: PLC0415

    locator: Any = AutoDateLocator(minticks=3, maxticks=8 if theme.width == WIDE else 5, tz=UTC)  # type: ignore[no-untyped-call]
    if times[-1] - times[0] <= timedelta(minutes=5):  # the other locator would show seconds, and no slot is that short
        locator = MinuteLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    written = ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(written)
    axes.set_xlim(times[0], times[-1])
    first, last = (f"{moment:%Y-%m-%d}" for moment in (times[0], times[-1]))
    axes.set_xlabel(f"{first if first == last else f'{first} to {last}'}, UTC", loc="left", fontsize=9, labelpad=6)


# -------------------------------------------------------------------------------------------------------- percentiles


def _sizes(report: Report, theme: Theme) -> bytes:
    ranked = sorted(report.topics, key=lambda each: (-each.size.p99, each.name))[:BARS_MAX]
    rows = [(cut(each.name, theme.label_chars), each.size) for each in ranked]
    return _ranges(theme, "Sizes of messages", rows, size, SIZES)


def _latency(report: Report, theme: Theme) -> bytes:
    """Draw the measured delivery, then topics by their messages, then dead letters. Each label ends with its kind."""
    rows: list[tuple[str, Percentiles]] = []
    if report.delivery_ms is not None:
        rows.append(("all: until handed over", report.delivery_ms))
    room = BARS_MAX - len(rows) - min(len(report.dead), BARS_MAX // 3)
    ranked = sorted(report.topics, key=lambda each: (-each.messages, each.name))[:room]
    rows += [(_label_of(each.name, ": age", theme), each.age_ms) for each in ranked]
    dead = report.dead[: BARS_MAX - len(rows)]
    rows += [(_label_of(each.topic, f": until {cut(each.reason, 12)}", theme), each.took_ms) for each in dead]
    return _ranges(theme, "Time from the publish", rows, span, SPANS_MS)


def _label_of(name: str, what: str, theme: Theme) -> str:
    return f"{cut(name, max(4, theme.label_chars - len(what)))}{what}"


def _ranges(
    theme: Theme,
    title: str,
    rows: Sequence[tuple[str, Percentiles]],
    as_text: Callable[[float], str],
    ticks: Sequence[float],
) -> bytes:
    """Draw a line from the median to the largest value of each row, on a logarithmic scale.

    A value below the first tick is drawn at that tick.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    marks = (("p50", "o"), ("p90", "s"), ("p99", "D"), ("max", "|"))
    with figure(theme, title, 1.5 + 0.42 * len(rows)) as (drawn, axes):
        least = ticks[0]
        for place, (_, values) in enumerate(rows):
            ends = [max(values.p50, least), max(values.max, least)]
            axes.plot(ends, [place, place], color=theme.series[0], linewidth=2, alpha=0.45, zorder=2)
        for (name, mark), colour in zip(marks, theme.series, strict=False):
            found = [max(getattr(values, name), least) for _, values in rows]
            axes.scatter(found, range(len(rows)), marker=mark, s=46, color=colour, label=name, zorder=3)
        axes.set_xscale("log")
        low = min(max(values.p50, least) for _, values in rows) / 2
        high = max(max(values.max, least) for _, values in rows) * 2
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(FixedLocator(_inside(ticks, low, high, 9 if theme.width == WIDE else 4)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: as_text(x)))
        axes.xaxis.set_minor_locator(NullLocator())
        _rows(axes, [name for name, _ in rows])
        _legend(axes, theme, title, [name for name, _ in marks])
        return png_of(drawn)


def _inside(ticks: Sequence[float], low: float, high: float, most: int) -> list[float]:
    """Return round values within the range, at most so many; with doubles and fives if fewer than two fit."""
    found = [tick for tick in ticks if low <= tick <= high]
    if len(found) < 2:
        finer = (tick * part for tick in (ticks[0] / 10, *ticks) for part in (2, 5))
        more = [tick for tick in finer if all(max(tick / each, each / tick) >= APART for each in ticks)]
        found = sorted(tick for tick in (*found, *more) if low <= tick <= high)
    return found[:: -(-len(found) // most)] if found else found


def _legend(axes: Any, theme: Theme, title: str, names: Sequence[str]) -> None:
    """Draw a legend between title and plot, in as few lines as its names allow."""
    lines = _lines(theme, names)
    axes.legend(
        frameon=False,
        ncols=-(-len(names) // lines),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=0,
        borderpad=0.2,
        columnspacing=1.4,
        handlelength=1.2,
        fontsize=9,
    )
    axes.set_title(title, fontsize=13, fontweight="bold", pad=12 + 72 * LINE * lines)


def _lines(theme: Theme, names: Sequence[str]) -> int:
    """Return how many lines a legend of these names takes."""
    columns = max(1, int(theme.width * 15 / (max(map(len, names)) + 6)))
    return -(-len(names) // columns)


# --------------------------------------------------------------------------------------------------------------- bars


def _keys(report: Report, theme: Theme) -> bytes:
    each_chars = theme.label_chars // 2
    hot = sorted(report.keys, key=lambda each: -each.messages)[:BARS_MAX]
    rows = [
        (f"{cut(each.topic, each_chars)}  {cut(each.key, each_chars)}", float(each.messages), f"{each.share:.1%}")
        for each in hot
    ]
    return _bars(theme, "Messages by key", rows, theme.series[0], "and their share of the topic", number)


def _dead(report: Report, theme: Theme) -> bytes:
    each_chars, note_chars = theme.label_chars // 2, int(theme.width * 4)
    rows = [
        (
            f"{cut(each.topic, each_chars)}  {cut(each.reason, each_chars)}",
            float(each.messages),
            cut(each.errors[0][0], note_chars) if each.errors else "",
        )
        for each in report.dead[:BARS_MAX]
    ]
    return _bars(theme, "Dead letters by reason", rows, theme.series[1], "and the most frequent error of each", number)


def _bars(
    theme: Theme,
    title: str,
    rows: Sequence[tuple[str, float, str]],
    colour: str,
    about: str,
    as_text: Callable[[float], str],
) -> bytes:
    """Draw a bar for each row, with its value and a note after it, and leave room for the longest note."""
    with figure(theme, title, 1.2 + 0.36 * len(rows)) as (drawn, axes):
        axes.barh(range(len(rows)), [value for _, value, _ in rows], color=colour, height=0.62)
        largest = max(value for _, value, _ in rows) or 1.0
        notes = [f"{as_text(value)}   {note}".rstrip() for _, value, note in rows]
        for place, (_, value, _) in enumerate(rows):
            axes.text(value + largest * 0.01, place, notes[place], va="center", fontsize=9)
        chars = theme.width * 8  # about as many as fit beside the labels
        axes.set_xlim(0, largest / max(0.25, 1 - max(map(len, notes)) / chars))
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        _rows(axes, [cut(name, theme.label_chars + 2) for name, _, _ in rows], grid=False)
        axes.set_title(title, fontsize=13, fontweight="bold", pad=24)
        axes.text(0, 1.02, about, transform=axes.transAxes, fontsize=9, alpha=0.8)
        return png_of(drawn)


def _rows(axes: Any, names: Sequence[str], *, grid: bool = True) -> None:
    """Label the axis with a row for each name, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(length=0, pad=7)
    axes.spines["left"].set_visible(False)
    if grid:
        axes.grid(axis="x", linewidth=0.7)
        axes.set_axisbelow(True)


# -------------------------------------------------------------------------------------------------------------- words


def cut(text: str, most: int) -> str:
    """Return a label, cut so that it leaves room for the plot."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(each if each.isprintable() else "�" for each in short)


def number(value: float) -> str:
    """Return a figure in few digits.

    Examples
    --------
    >>> number(0.0123), number(12.34), number(1_234_567)
    ('0.0123', '12.3', '1,234,567')
    """
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:,.3g}"


def size(count: float) -> str:
    """Return bytes in a short form, with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1_024:
            return f"{number(count)} {unit}"
        count /= 1_024
    return f"{number(count)} TiB"


def span(ms: float) -> str:
    """Return a duration in a short form, with a unit."""
    for unit, length, most in (("ms", 1.0, 1e3), ("s", 1e3, 6e4), ("min", 6e4, 3.6e6), ("h", 3.6e6, 8.64e7)):
        if ms < most:
            return f"{number(ms / length)} {unit}"
    return f"{number(ms / 8.64e7)} d"


def minute(ms: int) -> str:
    """Return a time in UTC, to the minute."""
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M")
