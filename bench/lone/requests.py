"""One JSON message a request over 64 connections, beside `GET /healthz` of the same node."""

from __future__ import annotations

from bench import requests
from bench.figure import Figure
from bench.lone.turns import Contender, Servers, in_turn
from bench.peers.wherry import WherryNode


def figures(scale: int) -> list[Figure]:
    """Measure publishes and `/healthz` in turn."""
    contenders = {
        "http": Contender(WherryNode, lambda node: requests.measured(node, max(1, requests.SECONDS // scale)))
    }
    with Servers() as servers:
        found = in_turn(servers, f"lone.requests by {requests.sender()}", contenders, scale)["http"]
    against = f"GET /healthz, {requests.CONNECTIONS} connections, by {requests.sender()}"
    unit = "requests/s, one JSON message each"
    return [
        Figure("lone.requests.rate_by_healthz", found["rate"], unit, against, found["healthz"]),
        Figure("lone.requests.server_us", found["server_us"], "us of the node's processor a message", "0.25 ms", 250),
    ]
