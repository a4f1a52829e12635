"""`python -m bench.stomp_sides CASE produce|consume PORT COUNT`: one side of a flow over STOMP, by stomp.py.

The same code runs against Wherry and against RabbitMQ: only the port differs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import stomp

from bench.flow import play

SIZE = 256
BODY = "x" * SIZE
IN_FLIGHT = 500
PREFETCH = 500
SUBSCRIBERS = 10
PATIENCE_S = 120


Prepare = Callable[[int, int], Callable[[], None]]
"""Given a port and a count: connect, and come back with what there is to do."""


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Counts what comes."""

    def __init__(self, on_receipt: Callable[[], None], on_message: Callable[[Any], None]) -> None:
        self._on_receipt, self._on_message = on_receipt, on_message

    def on_receipt(self, frame: Any) -> None:
        self._on_receipt()

    def on_message(self, frame: Any) -> None:
        self._on_message(frame)

    def on_error(self, frame: Any) -> None:
        print(frame.headers, frame.body, file=sys.stderr)


def connected(port: int, listener: Listener) -> stomp.Connection12:
    """Connect without heart-beats: a side that is busy must not be taken for dead."""
    connection = stomp.Connection12([("127.0.0.1", port)], vhost="/", heartbeats=(0, 0))
    connection.set_listener("", listener)
    connection.connect("guest", "guest", wait=True)
    return connection


def send(destination: str, *, persistent: bool) -> Prepare:
    """Send so many messages with receipts, so many of them under way."""

    def prepare(port: int, count: int) -> Callable[[], None]:
        room, done, got = threading.Semaphore(IN_FLIGHT), threading.Event(), 0

        def on_receipt() -> None:
            nonlocal got
            got += 1
            room.release()
            if got == count:
                done.set()

        connection = connected(port, Listener(on_receipt, lambda _: None))
        headers = {"persistent": "true"} if persistent else {}

        def work() -> None:
            for number in range(count):
                room.acquire()
                connection.send(destination, BODY, headers={**headers, "receipt": str(number)})
            assert done.wait(PATIENCE_S), f"{got} of {count} receipts came"
            connection.disconnect()

        return work

    return prepare


def receive(destination: str, *, acks: bool, subscribers: int = 1) -> Prepare:
    """Receive so many messages for each subscriber, acked in multiples or not at all."""

    def prepare(port: int, count: int) -> Callable[[], None]:
        ready, done, got, unacked = threading.Semaphore(0), threading.Event(), 0, 0

        def on_message(frame: Any) -> None:
            nonlocal got, unacked
            assert len(frame.body) == SIZE
            got, unacked = got + 1, unacked + 1
            if acks and (unacked >= PREFETCH // 2 or got == count):
                connection.ack(frame.headers["ack"])
                unacked = 0
            if got == count * subscribers:
                done.set()

        connection = connected(port, Listener(ready.release, on_message))
        for number in range(subscribers):
            headers = {"prefetch-count": str(PREFETCH), "receipt": f"subscribed-{number}"}
            connection.subscribe(destination, id=str(number), ack="client" if acks else "auto", headers=headers)
            assert ready.acquire(timeout=PATIENCE_S)

        def work() -> None:
            assert done.wait(PATIENCE_S), f"{got} of {count * subscribers} messages came"
            connection.disconnect()

        return work

    return prepare


class Case(NamedTuple):
    """The two sides of a flow."""

    produce: Prepare
    consume: Prepare


CASES = {
    "durable": Case(send("/queue/lasting", persistent=True), receive("/queue/lasting", acks=True)),
    "transient": Case(send("/queue/passing", persistent=False), receive("/queue/passing", acks=False)),
    "fanout": Case(send("/topic/fan", persistent=False), receive("/topic/fan", acks=False, subscribers=SUBSCRIBERS)),
}


if __name__ == "__main__":
    play(CASES[sys.argv[1]].produce if sys.argv[2] == "produce" else CASES[sys.argv[1]].consume)
