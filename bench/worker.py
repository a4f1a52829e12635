"""`python -m bench.worker PEER produce|consume PORT COUNT [RATE]`: one side of a flow, in a process of its own."""

from __future__ import annotations

import json
import sys
import time

from bench.peers import LONE, PEERS

SAMPLE_MAX = 20_000
"""Ages that are told, evenly over the run: a line of them has to fit through a pipe."""


def main() -> None:
    """Wait for the word, do the work, tell when it began and ended."""
    name, role, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rate = int(sys.argv[5]) if len(sys.argv) > 5 else None
    peer = {**PEERS, **LONE}[name]
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    ages: list[float] = []
    if role == "produce":
        peer.produce(port, count, rate)
    else:
        ages = peer.consume(port, count)
    ended = time.monotonic()
    sample = ages[:: len(ages) // SAMPLE_MAX + 1]
    told = {"began": began, "ended": ended, "cpu": time.process_time(), "ages": sample}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
