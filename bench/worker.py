"""`python -m bench.worker PEER produce|consume PORT COUNT [RATE]`: one side of a flow by the client of a peer."""

from __future__ import annotations

import importlib
import sys

from bench.flow import Found, Work, play
from bench.peers import LONE, PEERS


def prepare(port: int, count: int, rate: str | None = None) -> Work:
    """Import the client, so that no import is timed; return the work."""
    peer = {**PEERS, **LONE}[sys.argv[1]]
    for module in peer.clients:
        importlib.import_module(module)

    def produce() -> Found:
        peer.produce(port, count, None if rate is None else int(rate))
        return None

    def consume() -> Found:
        return {"age": peer.consume(port, count)}

    return produce if sys.argv[2] == "produce" else consume


if __name__ == "__main__":
    play(prepare)
