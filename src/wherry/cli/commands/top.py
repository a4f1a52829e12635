"""`top`: topics and subscriptions, live; `mesh`: the links of a node to its peers."""

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


def _link_rows(view: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each topic of each link; a link without a topic has one row as well."""
    waiting = {(each["topic"], each["peer"]): each["waiting"] for each in view["backlogs"]}
    rows = []
    for link in view["links"]:
        about = {"node": link["node"] or "?", "role": link["role"], "url": link["url"], "state": link["state"]}
        for flow in link["topics"] or [{"topic": None, "last_fault": ""}]:
            sent = waiting.get((flow["topic"], link["node"]))
            rows.append({**about, **flow, "waiting": sent, "why": link["why"] or flow["last_fault"]})
    return rows


@command(app, "mesh", "wherry mesh", "wherry mesh --json", panel=FIGURES)
def mesh(ctx: typer.Context, json: AsJson = False) -> None:
    """Show the links of a node to its peers. `waiting`: what the peer has not read; `stored`: what came from it."""
    options = options_of(ctx, json)
    view = options.run(lambda link: link.exists("mesh"))
    if view is None:
        output.note("this node has no peers: it is served without the setting mesh.node")
        raise typer.Exit(1)
    names = ("node", "role", "state", "topic", "stored", "repeated", "refused", "cut_offs", "waiting", "why")
    empty = f"{view['node']} is connected to no node yet"
    output.show({name: name for name in names}, _link_rows(view), json=options.json, empty=empty)
    if not json:
        for each in view["cut_offs"]:
            output.note(f"{each['subscription']} was cut off from {each['topic']}: {each['why']}")
        for url, why in view["refused"].items():
            output.note(f"{url} is not connected to: {why}")
