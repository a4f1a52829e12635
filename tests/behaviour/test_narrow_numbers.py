"""Numbers that have a bound in a format: each at its edge, and one beyond it."""

import asyncio

import numpy as np
import pytest

import wherry
from wherry import InvalidInput
from wherry.core.state.lease import EPOCH_SHIFT, Leases
from wherry.journal.codec import decode, encode
from wherry.model import limits, ops
from wherry.model.catalog.subscription import Retry
from wherry.model.ops import Entry
from wherry.model.schema import Message, compact, completed, delivered


def attempts_of(attempts) -> list[int]:
    batch = compact([b"x"] * (1 if isinstance(attempts, int) else len(attempts)))
    return delivered(batch, np.arange(batch.num_rows), 0, 0, attempts).column("attempt").to_pylist()


@pytest.mark.parametrize("count", [1, 65_534, 65_535, 65_536, 65_537, 131_072, 1 << 40])
def test_an_attempt_is_counted_up_to_its_bound_and_stays_there(count):
    assert attempts_of(count) == [min(count, 65_535)]
    assert attempts_of(np.array([count, 1, count], np.int64)) == [min(count, 65_535), 1, min(count, 65_535)]


def test_a_message_that_failed_65535_times_is_still_redelivered_and_counted_on():
    async def main():
        async with wherry.open() as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "s", retry=Retry(attempts=None, first_ms=0, factor=1, cap_ms=0, jitter=0))
            await broker.publish("t", [b"poison"])
            subscription = broker.shard.state.subscription("t", "s")
            consumer = await broker.consumer("t", "s")
            await (await consumer.pull(1)).nack(delay_ms=0)
            held = subscription.readers[0].attempts_table
            rows = {name: held.get(np.array([0]), name, 0) for name in held.names} | {"attempts": 65_532}
            held.put(np.array([0]), **rows)
            for expected in (65_533, 65_534, 65_535, 65_535, 65_535):
                (got,) = (delivery := await consumer.pull(1, wait_ms=5_000)).messages()
                assert got.attempt == expected
                await delivery.nack(delay_ms=0)
            await (await consumer.pull(1, wait_ms=5_000)).dead_letter()
            (dead,) = (await broker.dead_letters("t")).to_pylist()
            assert dead["attempts"] == 65_538

    asyncio.run(main())


def test_priorities_and_partitions_reach_consumers_up_to_their_bounds():
    async def main():
        async with wherry.open() as broker:
            most = limits.PRIORITY_MAX
            await broker.create_topic("p", order="priority")
            await broker.subscribe("p", "s")
            await broker.publish("p", [Message(payload=b"%d" % each, priority=each) for each in (most, 0, most - 1)])
            for wrong in (most + 1, -1):
                with pytest.raises(InvalidInput):
                    await broker.publish("p", [Message(payload=b"no", priority=wrong)])
            consumer = await broker.consumer("p", "s")
            assert [each.priority for each in await consumer.pull(5)] == [0, most - 1, most]
        batch = compact([b"x"])
        for number in (0, 65_534):
            row = completed(delivered(batch, np.array([7]), 0, number, 1)).to_pylist()[0]
            assert (row["partition"], row["offset"]) == (number, 7)

    asyncio.run(main())


def test_tokens_of_later_owners_are_higher_and_fit_64_bits_for_millions_of_owners():
    def first(epoch: int) -> int:
        columns = (np.array([1]), np.array([1]), np.array([1]))
        return Leases(epoch).grant(1, "c", 0, columns, 0).token

    last = (1 << 63 - EPOCH_SHIFT) - 1
    assert last > 8_000_000
    assert first(1) < first(2) < first(last) < 1 << 63
    assert np.array([first(last)], np.int64)[0] == first(last)


def test_the_version_of_an_amended_message_is_counted_beyond_16_bits():
    async def main():
        async with wherry.open() as broker:
            await broker.create_topic("t", order="timeline")
            await broker.subscribe("t", "s")
            await broker.publish("t", [Message(payload=b"x", id="a", due_ms=4_000_000_000_000)])
            partition = broker.shard.state.topic("t").partitions[0]
            partition.versions.put(np.array([0]), version=70_000)
            await broker.amend("t", "a", payload=b"y", version=70_000)
            await broker.amend("t", "a", payload=b"z", version=70_001)
            with pytest.raises(wherry.VersionConflict):
                await broker.amend("t", "a", payload=b"no", version=70_001 - 65_536)

    asyncio.run(main())


def test_an_entry_keeps_large_numbers():
    large = (1 << 62) - 1
    entry = Entry(large, [ops.Opened(large, "me"), ops.Reserve(large, 65_534, large)])
    parts, _, _ = encode(entry)
    found = decode(b"".join(parts))
    assert (found.at_us, found.ops) == (large, entry.ops)
