"""The chart at the end of a demo: rates over time, in a terminal and as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wherry.spark.pipelines.demo.demo import Story, Totals
from wherry.spark.pipelines.report.plots import LIGHT, figure, png_of

BLOCKS = " ▁▂▃▄▅▆▇█"
SERIES = ("published", "piped", "consumed")
WORDS = {"published": "published to orders", "piped": "read by the pipeline", "consumed": "consumed from orders.large"}
WINDOW_S = 5.0


def rates(moments: Sequence[Totals], name: str) -> list[float]:
    """Return the rate a second at each moment, over the few seconds before it.

    Examples
    --------
    >>> [rate for rate in rates([Totals(0, 0, 0, 0, 0, 0), Totals(2, 100, 0, 0, 0, 0)], "published")]
    [0.0, 50.0]
    """
    found, first = [], 0
    for at, moment in enumerate(moments):
        while first < at and moments[first].at_s < moment.at_s - WINDOW_S:
            first += 1
        before = moments[first]
        seconds = moment.at_s - before.at_s
        found.append((getattr(moment, name) - getattr(before, name)) / seconds if seconds > 0 else 0.0)
    return found


def spark_line(values: Sequence[float], width: int, top: float) -> str:
    """Return values as a line of blocks, `width` wide; `top` is a full block.

    Examples
    --------
    >>> spark_line([0, 1, 2, 4], 4, 4)
    ' ▂▄█'
    """
    wide = min(width, len(values))
    cells = []
    for place in range(wide):
        part = values[place * len(values) // wide : (place + 1) * len(values) // wide]
        cells.append(BLOCKS[min(8, round(sum(part) / len(part) / top * 8))] if top > 0 else " ")
    return "".join(cells)


def chart(story: Story, width: int = 48) -> list[str]:
    """Return three lines of text, on one scale."""
    found = {name: rates(story.moments, name) for name in SERIES}
    top = max((max(values, default=0.0) for values in found.values()), default=0.0)
    wide = max(map(len, WORDS.values()))
    return [
        f"{WORDS[name]:<{wide}}  {spark_line(values, width, top)}  {max(values, default=0.0):,.0f}/s at most"
        for name, values in found.items()
    ]


def picture(story: Story, path: Path) -> None:
    """Write the same chart as a PNG."""
    times = [moment.at_s for moment in story.moments]
    with figure(LIGHT, "", 5.0) as (drawn, only):
        only.remove()
        above, below = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        for colour, name in zip(LIGHT.series, SERIES, strict=False):
            above.plot(times, rates(story.moments, name), color=colour, linewidth=2, label=WORDS[name])
        above.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0, fontsize=9)
        above.set_title("Messages a second", fontsize=13, fontweight="bold", pad=28)
        lags = [moment.lag for moment in story.moments]
        below.fill_between(times, lags, color=LIGHT.series[5], alpha=0.35, linewidth=0)
        below.set_title("Messages that the pipeline is behind", fontsize=10)
        below.set_xlabel("seconds", loc="left")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
            axes.set_xlim(0, max(times, default=1.0))
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.grid(axis="y", linewidth=0.7)
            axes.tick_params(length=0, pad=7)
            axes.spines["left"].set_visible(False)
        path.write_bytes(png_of(drawn))
