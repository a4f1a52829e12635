"""`python -m bench.lone.sides.zenoh CASE produce|consume PORT COUNT KEY`: zenoh, where the producer binds the port."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import zenoh

from bench.flow import SIDE_S, Found, Steps, play_steps
from bench.lone.shapes import SUBSCRIBERS
from bench.peers.peer import SIZE, message


def _session(port: int, ends: str) -> Any:
    """Open a session that finds no other by itself: `ends` is `listen` or `connect`."""
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")
    config.insert_json5(f"{ends}/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    if ends == "connect":
        config.insert_json5("listen/endpoints", "[]")
    return zenoh.open(config)


def fanout_produce(port: int, count: int, key: str) -> Iterator[Found]:
    """Put message by message, and wait where a reader is slow; begin when all subscribers are there."""
    with _session(port, "listen") as session:
        end = time.monotonic() + SIDE_S
        while sum(1 for _ in session.liveliness().get(f"{key}-ready/*")) < SUBSCRIBERS:
            if time.monotonic() > end:
                raise RuntimeError("not all subscribers came")
            time.sleep(0.05)
        publisher = session.declare_publisher(key, congestion_control=zenoh.CongestionControl.BLOCK)
        yield None
        for _ in range(count):
            publisher.put(message())
        yield None


def fanout_consume(port: int, count: int, key: str) -> Iterator[Found]:
    """Subscribe several times, each over a session of its own."""
    left, is_over = [count] * SUBSCRIBERS, threading.Event()

    def taker(number: int) -> Any:
        def take(sample: Any) -> None:
            assert len(sample.payload.to_bytes()) == SIZE
            left[number] -= 1
            if not left[number] and not any(left):
                is_over.set()

        return take

    with ExitStack() as stack:
        kept = []
        for number in range(SUBSCRIBERS):
            session = stack.enter_context(_session(port, "connect"))
            kept.append(session.declare_subscriber(key, taker(number)))
            kept.append(session.liveliness().declare_token(f"{key}-ready/{number}"))
        yield None
        if not is_over.wait(SIDE_S):
            raise RuntimeError(f"messages are missing: {left}")
        yield None


SIDES: dict[str, dict[str, Steps]] = {"fanout": {"produce": fanout_produce, "consume": fanout_consume}}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
