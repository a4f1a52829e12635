"""`python -m bench.amqp_codec`: microseconds of the AMQP codec for each message, beside pamqp where it is installed.

Best of several runs: what is wanted is the cost of the code, not of the machine's other work.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from time import perf_counter
from typing import Any

from wherry.queueing.message import properties
from wherry.queueing.message.properties import Properties
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.frames import HEAD, HEADER, OVERHEAD
from wherry.wire.amqp.codec.methods import BasicPublish, QueueDeclare
from wherry.wire.amqp.codec.reader import FrameReader

COUNT = 1000
BODY = bytes(256)
FRAME_MAX = 131072
PLAIN = Properties(content_type="text/plain", delivery_mode=2)
TASKS = [
    Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"lang": "py", "task": "tasks.add", "id": "5f3c", "retries": 0, "eta": None, "timelimit": [None, None]},
        delivery_mode=2,
        priority=0,
        correlation_id=f"{number:08x}-8a45-4b1c-9f58-3e0f1f0a3c55",
        reply_to="c2b5d6a4-7f3e-3a2b-9d1c-0e8f7a6b5c4d",
    )
    for number in range(COUNT)
]


def measure(run: Callable[[], object], count: int = COUNT, rounds: int = 25) -> float:
    """Return microseconds for one of so many."""
    best = float("inf")
    for _ in range(rounds):
        start = perf_counter()
        run()
        best = min(best, perf_counter() - start)
    return best / count * 1e6


def publishes(kinds: list[Properties], bodies: list[bytes] | None = None) -> bytes:
    """Return a stream of publishes."""
    method = BasicPublish(exchange="", routing_key="jobs")
    return b"".join(
        b"".join(writer.content(1, method, properties.encode(kinds[number % len(kinds)]), body, FRAME_MAX))
        for number, body in enumerate(bodies or [BODY] * COUNT)
    )


def reading(stream: bytes, chunk: int = 65536) -> Callable[[], object]:
    """Reads a stream as a server does, in what a socket gives at once."""
    chunks = [stream[start : start + chunk] for start in range(0, len(stream), chunk)]

    def run() -> None:
        reader = FrameReader(FRAME_MAX)
        reader.feed(HEADER)
        for data in chunks:
            reader.feed(data)

    return run


def ours() -> dict[str, float]:
    """Return microseconds by what is done."""
    numbered = [Properties(delivery_mode=2, message_id=f"{number:032x}") for number in range(COUNT)]
    acks = b"".join(writer.ack(1, tag) for tag in range(1, COUNT + 1))
    raw = properties.encode(PLAIN)
    label = (False, "", "jobs", raw)
    alike = [(label, BODY)] * COUNT
    bodies = [bytes(200 + number % 112) for number in range(COUNT)]
    unlike = [((False, "", "jobs", properties.encode(each)), BODY) for each in numbered]
    deliveries = writer.DeliveryWriter(1, "ctag1.0b2f4d", FRAME_MAX)
    task = properties.encode(TASKS[0])
    declare = writer.frame(1, QueueDeclare(queue="jobs", durable=True, arguments={"x-max-priority": 10})) * COUNT
    return {
        "publish parsed": measure(reading(publishes([PLAIN]))),
        "publish parsed, own sizes": measure(reading(publishes([PLAIN], bodies))),
        "publish parsed, own message ids": measure(reading(publishes(numbered))),
        "publish parsed, as of Celery": measure(reading(publishes(TASKS))),
        "publish parsed, frames cut": measure(reading(publishes([PLAIN]), chunk=150), rounds=10),
        "ack parsed": measure(reading(acks)),
        "queue.declare parsed": measure(reading(declare), rounds=10),
        "delivery encoded": measure(lambda: deliveries.pieces(1, alike)),
        "delivery encoded, own sizes": measure(lambda: deliveries.pieces(1, [(label, body) for body in bodies])),
        "delivery encoded, own message ids": measure(lambda: deliveries.pieces(1, unlike)),
        "confirm encoded": measure(lambda: [writer.ack(1, tag) for tag in range(COUNT)]),
        "properties read, known": measure(lambda: [properties.used_properties(raw) for _ in range(COUNT)]),
        "properties read, as of Celery": measure(lambda: [properties.used_properties(task) for _ in range(COUNT)]),
        "properties decoded, as of Celery": measure(lambda: [properties.decode(task) for _ in range(COUNT)]),
    }


def theirs() -> dict[str, float]:
    """Return the same with pamqp, where it is installed. Its frames are not made into messages."""
    if importlib.util.find_spec("pamqp") is None:
        return {}
    frame: Any = importlib.import_module("pamqp.frame")
    commands: Any = importlib.import_module("pamqp.commands")
    header: Any = importlib.import_module("pamqp.header")
    body: Any = importlib.import_module("pamqp.body")

    def parse(stream: bytes) -> Callable[[], object]:
        # Frames are cut out for pamqp beforehand: pamqp would copy the whole rest of its buffer for each of them.
        cut: list[bytes] = []
        at = 0
        while at < len(stream):
            end = at + HEAD.unpack_from(stream, at)[2] + OVERHEAD
            cut.append(stream[at:end])
            at = end
        return lambda: [frame.unmarshal(data) for data in cut]

    raw = commands.Basic.Properties(content_type="text/plain", delivery_mode=2)

    def deliver() -> None:
        for tag in range(1, COUNT + 1):
            method = commands.Basic.Deliver("ctag1.0b2f4d", tag, False, "", "jobs")
            for part in (method, header.ContentHeader(0, len(BODY), raw), body.ContentBody(BODY)):
                frame.marshal(part, 1)

    acks = b"".join(frame.marshal(commands.Basic.Ack(tag), 1) for tag in range(1, COUNT + 1))
    return {
        "publish parsed": measure(parse(publishes([PLAIN])), rounds=5),
        "publish parsed, as of Celery": measure(parse(publishes(TASKS)), rounds=5),
        "ack parsed": measure(parse(acks), rounds=5),
        "delivery encoded": measure(deliver, rounds=5),
        "confirm encoded": measure(
            lambda: [frame.marshal(commands.Basic.Ack(tag), 1) for tag in range(COUNT)], rounds=5
        ),
    }


def main() -> None:
    """Prints a line for each figure."""
    peer = theirs()
    for name, micros in ours().items():
        beside = f"   pamqp {peer[name]:7.2f} µs   ratio {peer[name] / micros:5.1f}" if name in peer else ""
        print(f"{name:36} {micros:7.2f} µs{beside}")


if __name__ == "__main__":
    main()
