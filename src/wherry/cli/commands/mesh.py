"""`mesh`: the links of a node to its peers."""

from __future__ import annotations

from typing import Any

import typer

from wherry.cli import output
from wherry.cli.frame import FIGURES, app, command
from wherry.cli.options import AsJson, options_of


def _rows(view: dict[str, Any]) -> list[dict[str, Any]]:
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
    output.show({name: name for name in names}, _rows(view), json=options.json, empty=empty)
    if not json:
        for each in view["cut_offs"]:
            output.note(f"{each['subscription']} was cut off from {each['topic']}: {each['why']}")
        for url, why in view["refused"].items():
            output.note(f"{url} is not connected to: {why}")
