"""`top`: topics and subscriptions, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.frame import FIGURES, app, command
from wherry.cli.options import AsJson, options_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from wherry.cli.link import BrokerLink

COLUMNS = ("topic", "subscription", "in/s", "out/s", "ready", "leased", "later", "dead", "lag", "age")
"""Columns that fit into 80 characters; JSON has more."""


class StatsReading:
    """The statistics of all topics at one moment."""

    def __init__(self, views: list[dict[str, Any]]) -> None:
        self.at = time.monotonic()
        self.topics = [view["stats"] for view in views]

    def counted(self) -> dict[tuple[str, str], int]:
        """Return the counters: published by topic, acked by subscription."""
        found: dict[tuple[str, str], int] = {}
        for topic in self.topics:
            found[topic["name"], ""] = topic["counters"].get("published", 0)
            for each in topic["subscriptions"]:
                found[topic["name"], each["name"]] = each["counters"].get("acked", 0)
        return found


def rows_of(before: StatsReading, after: StatsReading) -> list[dict[str, Any]]:
    """Return a row for each subscription, and for each topic without one; rates are between the two readings."""
    seconds, old, new = max(after.at - before.at, 1e-9), before.counted(), after.counted()

    def rate(topic: str, name: str) -> float:
        return max(0.0, (new[topic, name] - old.get((topic, name), new[topic, name])) / seconds)

    rows: list[dict[str, Any]] = []
    for topic in after.topics:
        name, common = topic["name"], {"messages": topic["messages"], "bytes": topic["bytes"]}
        arriving = rate(name, "")
        if not topic["subscriptions"]:
            rows.append({"topic": name, "subscription": None, "in": arriving, "dead": topic["dead"]} | common)
        for each in topic["subscriptions"]:
            figures = {key: each[key] for key in ("ready", "leased", "scheduled", "dead", "lag", "lag_ms", "consumers")}
            rates = {"in": arriving, "out": rate(name, each["name"])}
            rows.append({"topic": name, "subscription": each["name"]} | rates | figures | common)
    return rows


def _line(row: dict[str, Any]) -> list[object]:
    age = output.span(row["lag_ms"]) if row.get("lag") else ""
    plain = ("ready", "leased", "scheduled", "dead", "lag")
    rates = [f"{row[name]:,.0f}" if name in row else "" for name in ("in", "out")]
    return [row["topic"], row["subscription"], *rates, *(row.get(name) for name in plain), age]


@command(app, "top", "wherry top --once", "wherry top --once --json", panel=FIGURES)
def top(
    ctx: typer.Context,
    every: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Two looks, one table, and stop.")] = False,
    json: AsJson = False,
) -> None:
    """Show topics with rates, ready, leased, scheduled and dead messages, and lag, until Ctrl-C."""
    options = options_of(ctx, json)
    terminal = output.console()
    if options.json or once or not terminal.is_terminal:
        options.run(
            lambda link: _watch(
                link, every, once, _lines if options.json else lambda rows: terminal.print(_table(rows))
            )
        )
        return
    from rich.live import Live

    with Live(console=terminal, auto_refresh=False) as screen:
        options.run(lambda link: _watch(link, every, once, lambda rows: screen.update(_table(rows), refresh=True)))


async def _watch(link: BrokerLink, every_s: float, once: bool, draw: Callable[[list[dict[str, Any]]], None]) -> None:
    """Read the statistics, wait, read them again, and draw."""
    from asyncio import sleep

    before = StatsReading((await link.call("GET", "topics"))["topics"])
    while True:
        await sleep(every_s)
        after = StatsReading((await link.call("GET", "topics"))["topics"])
        draw(rows_of(before, after))
        if once:
            return
        before = after


def _lines(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        output.as_json(row)


def _table(rows: list[dict[str, Any]]) -> Table:
    return output.table(COLUMNS, map(_line, rows))
