"""A process to be killed: schedules messages, or moves its clock and takes those that are due.

Each line goes to a pipe with one write, after the broker confirmed what it reports.

    publish: "published 3" after each part, "all" at the end
    consume: "got 17 4 …" before an ack and "acked" after it, "drained 1800000000000" when nothing more is due
"""

import asyncio
import sys

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import wherry
from tests.integration.worker import report

START_MS = 1_800_000_000_000
FIRST_MS = START_MS + 365 * 24 * 3_600_000
"""The first due time."""
SPACING_MS = 1_000
PARTS, STEPS = 20, 20
"""In how many calls messages are published; in how many steps the clock moves over all due times."""
PULL = 10_000
CACHE_BYTES = 8 << 20
"""Far less than the messages take: most of them are read from disk."""


def due_times(count: int) -> npt.NDArray[np.int64]:
    """Return the due time of each message, by its number: no two are the same, in random order."""
    return np.random.default_rng(3).permutation(count) * SPACING_MS + FIRST_MS


async def publish(broker: wherry.Broker, count: int) -> None:
    """Publish all parts; a part that an earlier life had published is recognised by its sequence."""
    for part, numbers in enumerate(np.split(np.arange(count), PARTS)):
        payloads = pa.array([b"%d" % number for number in numbers], pa.binary())
        times = pa.array(due_times(count)[numbers], pa.int64()).view(pa.timestamp("ms", tz="UTC"))
        options = wherry.PublishOptions(producer="scheduler", sequence=int(numbers[0]))
        await broker.publish("later", pa.record_batch({"payload": payloads, "due": times}), options)
        report("published", part)
    report("all")
    await asyncio.Event().wait()


async def consume(broker: wherry.Broker, clock: wherry.VirtualClock, count: int) -> None:
    """Move the clock step by step, the first one to just before the first due time, and take what is due by then."""
    step_ms = count // STEPS * SPACING_MS
    async with await broker.consumer("later", "readers", "reader") as consumer:
        while True:
            while len(delivery := await consumer.pull(PULL)):
                report("got", *map(bytes.decode, delivery.payloads()))
                await delivery.ack()
                report("acked")
            report("drained", clock.now_ms)
            clock.advance((max(clock.now_ms + step_ms, FIRST_MS - 1) - clock.now_ms) / 1_000)


async def main(what: str, path: str, count: int, now_ms: int) -> None:
    clock = wherry.VirtualClock(now_ms)
    async with wherry.open(path, clock=clock, cache_bytes=CACHE_BYTES) as broker:
        if what == "publish":
            await broker.create_topic("later", order="timeline")
            await broker.subscribe("later", "readers", retry=wherry.Retry(attempts=None))
            await publish(broker, count)
        else:
            await consume(broker, clock, count)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
