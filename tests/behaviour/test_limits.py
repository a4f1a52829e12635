"""Hard limits of names, counts and sizes, each at both edges."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import wherry
from tests.behaviour.world import Home, bodies, drain, in_loop, reader_of
from wherry import (
    AlreadyExists,
    Broker,
    InvalidInput,
    LimitReached,
    Message,
    PublishOptions,
    Retry,
)
from wherry.model import limits
from wherry.model.schema import MESSAGE


@pytest.mark.rows("D21")
@in_loop
async def test_a_subscription_has_a_limit_of_consumers_and_it_is_a_million(home: Home, monkeypatch: pytest.MonkeyPatch):
    assert limits.CONSUMERS_PER_SUBSCRIPTION_MAX == 1_000_000
    monkeypatch.setattr(limits, "CONSUMERS_PER_SUBSCRIPTION_MAX", 3)
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.subscribe("t", "readers")
    consumers = [await broker.consumer("t", "readers") for _ in range(3)]
    with pytest.raises(LimitReached, match="consumers of the subscription is full: the limit is 3"):
        await broker.consumer("t", "readers")
    await consumers[0].close()
    await broker.consumer("t", "readers")


MILLION = """
import asyncio, resource, sys
import wherry
from wherry.model import limits

COUNT = limits.CONSUMERS_PER_SUBSCRIPTION_MAX = int(sys.argv[1])


def kilobytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main():
    async with wherry.open() as broker:
        await broker.create_topic("t", partitions=64)
        await broker.subscribe("t", "readers")
        before = kilobytes()
        consumers = [await broker.consumer("t", "readers") for _ in range(COUNT)]
        each = (kilobytes() - before) * 1024 / COUNT
        assert each < 700, f"{each} bytes for each consumer"
        assert broker.stats("t").subscriptions[0].consumers == COUNT
        try:
            await broker.consumer("t", "readers")
            raise AssertionError("one more than the limit")
        except wherry.LimitReached:
            pass
        some = consumers[:: COUNT // 1_000]
        waiting = [asyncio.create_task(one.pull(1, wait_ms=None)) for one in some[:500]]
        await asyncio.sleep(0)
        await broker.publish("t", [b"x"] * 500)
        got = await asyncio.gather(*waiting)
        await broker.publish("t", [b"x"] * 500)
        got += [await one.pull(1) for one in some[500:]]
        assert [len(each) for each in got] == [1] * 1_000
        for each in got:
            await each.ack()
        for one in some:
            await one.close()
        assert broker.stats("t").subscriptions[0].consumers == COUNT - 1_000
        assert broker.stats("t").messages == 0
        last = await broker.consumer("t", "readers")
        await broker.publish("t", [b"last"])
        assert (await last.pull(1)).payloads() == [b"last"]


asyncio.run(main())
"""


@pytest.mark.more
@pytest.mark.rows("D21")
@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_million_consumers_are_on_one_topic_and_each_that_asks_is_served(count: int):
    """Run in a process of its own, whose memory is that of the consumers alone."""
    subprocess.run([sys.executable, "-c", MILLION, str(count)], check=True)


@pytest.mark.rows("D21")
@in_loop
async def test_many_consumers_on_one_topic_are_each_served(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=7)
    await broker.subscribe("t", "readers")
    consumers = [await broker.consumer("t", "readers") for _ in range(3_000)]
    for _ in range(7):
        await broker.publish("t", [b"x"] * 500)
    got = [len(await consumer.pull(1)) for consumer in consumers]
    assert got == [1] * 3_000
    assert broker.stats("t").subscriptions[0].consumers == 3_000


@pytest.mark.rows("D22")
@in_loop
async def test_a_body_has_at_most_65535_bytes_unless_the_topic_asks_for_more(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.create_topic("large", payload_bytes_max=2_097_152)
    await broker.create_topic("tiny", payload_bytes_max=1)
    for topic, fits in (("t", 65_535), ("large", 2_097_152), ("tiny", 1)):
        await broker.subscribe(topic, "readers")
        await broker.publish(topic, [b"x" * fits])
        with pytest.raises(InvalidInput, match=rf"messages\[1\].payload.*{fits + 1} bytes.*0 to {fits} bytes"):
            await broker.publish(topic, [b"ok", b"x" * (fits + 1)] if fits > 1 else [b"", b"xx"])
        with pytest.raises(InvalidInput, match="payload"):
            await broker.stage("key", topic, [b"x" * (fits + 1)])
    broker = await home.again(how)
    for topic, fits in (("t", 65_535), ("large", 2_097_152), ("tiny", 1)):
        assert [len(body) for body in await drain(await broker.consumer(topic, "readers"))] == [fits]
    for wrong in (0, 25_165_825, -1):
        with pytest.raises(InvalidInput, match="payload_bytes_max"):
            await broker.create_topic("other", payload_bytes_max=wrong)


@pytest.mark.rows("D22")
def test_the_largest_body_fits_with_the_largest_of_all_else(tmp_path: Path):
    columns = {
        "payload": [bytes(limits.PAYLOAD_BYTES_MAX)],
        "envelope": [bytes(limits.ENVELOPE_BYTES_MAX)],
        "key": ["k" * limits.KEY_BYTES_MAX],
        "id": ["i" * limits.MESSAGE_ID_BYTES_MAX],
        "headers": [[("h", "v" * (limits.HEADERS_BYTES_MAX - 1))]],
    }
    arrays = [pa.array(values, MESSAGE.field(name).type) for name, values in columns.items()]

    async def main() -> None:
        async with wherry.open(tmp_path) as broker:
            await broker.create_topic("t", payload_bytes_max=limits.PAYLOAD_BYTES_MAX)
            await broker.subscribe("t", "readers")
            await broker.publish("t", pa.RecordBatch.from_arrays(arrays, names=list(columns)))
        async with wherry.open(tmp_path) as broker:
            found = await drain(await broker.consumer("t", "readers"))
            assert [len(body) for body in found] == [limits.PAYLOAD_BYTES_MAX]

    asyncio.run(main())


@pytest.mark.rows("D22")
@in_loop
async def test_an_amended_body_has_the_same_limit(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.publish("t", Message(payload=b"x", id="mine"))
    await broker.amend("t", "mine", payload=b"x" * 65_535)
    with pytest.raises(InvalidInput, match="payload"):
        await broker.amend("t", "mine", payload=b"x" * 65_536)


@pytest.mark.rows("D23")
@in_loop
async def test_a_topic_name_has_1_to_1024_bytes(home: Home, how: str):
    broker = await home.open()
    longest, umlauts = "t" * 1_024, "ü" * 512
    for name in ("t", longest, umlauts, "with spaces / and.dots"):
        await broker.create_topic(name)
        await broker.subscribe(name, "readers")
        await broker.publish(name, name[:3])
    for wrong in ("", "t" * 1_025, "ü" * 512 + "x", "a\nb", "a\x00", "a\x7f", "\ud800", 7, None, b"bytes"):
        with pytest.raises(InvalidInput, match="topic"):
            await broker.create_topic(wrong)  # type: ignore[arg-type]
    broker = await home.again(how)
    assert len(broker.topics()) == 4
    assert await drain(await broker.consumer(umlauts, "readers")) == ["üüü".encode()]


@pytest.mark.rows("D23")
@in_loop
async def test_a_consumer_id_has_1_to_256_graphic_characters(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    for name in ("c", "c" * 256, "ü" * 256, "a-b.c/d:e@f"):
        assert (await broker.consumer("t", "readers", name)).id == name
    for wrong in ("", "c" * 257, "a b", "a\tb", "a\n", "\x00", "\x7f", "a\u00a0b", "\ud800", 7, b"c"):
        with pytest.raises(InvalidInput, match="consumer"):
            await broker.consumer("t", "readers", wrong)  # type: ignore[arg-type]
    with pytest.raises(AlreadyExists, match="consumer"):
        await broker.consumer("t", "readers", "c")


@pytest.mark.rows("D23")
@in_loop
async def test_a_topic_has_1_to_65535_partitions(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("one", partitions=1)
    await broker.create_topic("most", partitions=65_535)
    await broker.subscribe("most", "readers")
    await broker.publish("most", [b"first"], PublishOptions(partition=0))
    await broker.publish("most", [b"last"], PublishOptions(partition=65_534))
    with pytest.raises(InvalidInput, match="0 to 65534"):
        await broker.publish("most", [b"x"], PublishOptions(partition=65_535))
    for wrong in (0, -1, 65_536, 1.0, True, "2"):
        with pytest.raises(InvalidInput, match="partitions"):
            await broker.create_topic("wrong", partitions=wrong)
    broker = await home.again(how)
    reader = await broker.consumer("most", "readers")
    assert len(reader.partitions) == 65_535
    assert sorted(await drain(reader)) == [b"first", b"last"]


@pytest.mark.rows("D3")
@in_loop
async def test_both_ends_of_the_priorities_are_in(home: Home):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [Message(payload=b"last", priority=65_535), Message(payload=b"first", priority=0)])
    assert [(m.payload, m.priority) for m in await reader.pull()] == [(b"first", 0), (b"last", 65_535)]


async def one_topic(home: Home) -> Broker:
    broker = await home.open()
    await broker.create_topic("t")
    return broker


@in_loop
async def test_ids_keys_headers_and_batches_have_both_their_edges(home: Home):
    broker = await one_topic(home)
    many = {str(number): "v" for number in range(256)}
    for fits in (
        Message(payload=b"", id="i"),
        Message(payload=b"", id="i" * 256),
        Message(payload=b"", key=""),
        Message(payload=b"", key="k" * 1_024),
        Message(payload=b"", headers=many),
        Message(payload=b"", headers={"n": "v" * 65_534}),
        Message(payload=b"", envelope=bytes(65_535)),
        Message(payload=b"", due_ms=0),
        Message(payload=b"", due_ms=limits.TIME_MS_MAX),
        Message(payload=b"", expires_ms=limits.TIME_MS_MAX),
    ):
        await broker.publish("t", [fits])
    for wrong, field in (
        (Message(payload=b"", id=""), "id"),
        (Message(payload=b"", id="i" * 257), "id"),
        (Message(payload=b"", id="1-2"), "id"),
        (Message(payload=b"", key="k" * 1_025), "key"),
        (Message(payload=b"", headers={**many, "one": "more"}), "headers"),
        (Message(payload=b"", headers={"n": "v" * 65_535}), "headers"),
        (Message(payload=b"", envelope=bytes(262_145)), "envelope"),
        (Message(payload=b"", headers={"a": 1}), "headers"),  # type: ignore[dict-item]
        (Message(payload=b"", due_ms=-1), "due"),
        (Message(payload=b"", due_ms=limits.TIME_MS_MAX + 1), "due"),
        (Message(payload=b"", expires_ms=-1), "expires"),
        (Message(payload=None), "payload"),  # type: ignore[arg-type]
        ([], "messages"),
    ):
        with pytest.raises(InvalidInput, match=field):
            await broker.publish("t", wrong)
    assert broker.stats("t").messages == 10


@in_loop
async def test_a_batch_has_a_limit_and_it_is_a_million(home: Home, monkeypatch: pytest.MonkeyPatch):
    assert limits.BATCH_MESSAGES_MAX == 1_000_000
    monkeypatch.setattr(limits, "BATCH_MESSAGES_MAX", 3)
    broker = await one_topic(home)
    await broker.publish("t", bodies(3))
    with pytest.raises(InvalidInput, match="1 to 3 messages"):
        await broker.publish("t", bodies(4))


@in_loop
async def test_names_of_subscriptions_producers_and_stages_have_both_their_edges(home: Home):
    broker = await one_topic(home)
    for name in ("s", "s" * 256):
        await broker.subscribe("t", name)
    for name in ("p", "p" * 256):
        await broker.publish("t", b"x", PublishOptions(producer=name, sequence=0))
    for name in ("k", "k" * 512):
        await broker.stage(name, "t", b"x")
    for wrong in ("", "s" * 257):
        with pytest.raises(InvalidInput, match="subscription"):
            await broker.subscribe("t", wrong)
        with pytest.raises(InvalidInput, match="producer"):
            await broker.publish("t", b"x", PublishOptions(producer=wrong, sequence=0))
        with pytest.raises(InvalidInput, match="key"):
            await broker.stage(wrong * 2, "t", b"x")


@in_loop
async def test_a_retry_policy_has_both_its_edges(home: Home):
    broker = await one_topic(home)
    week_ms = 7 * 24 * 3_600_000
    await broker.subscribe("t", "low", lease_ms=1, retry=Retry(attempts=1, first_ms=0, factor=1, cap_ms=0, jitter=0))
    high = Retry(attempts=65_535, first_ms=week_ms, factor=1_000, cap_ms=limits.TIME_MS_MAX, jitter=1)
    await broker.subscribe("t", "high", lease_ms=week_ms, retry=high)
    for wrong in (
        Retry(attempts=0),
        Retry(attempts=65_536),
        Retry(first_ms=-1),
        Retry(first_ms=week_ms + 1, cap_ms=week_ms * 2),
        Retry(factor=0.9),
        Retry(factor=1_001),
        Retry(factor=float("nan")),
        Retry(jitter=-0.1),
        Retry(jitter=1.1),
        Retry(first_ms=10, cap_ms=9),
    ):
        with pytest.raises(InvalidInput, match="retry"):
            await broker.subscribe("t", "wrong", retry=wrong)


@in_loop
async def test_room_that_comes_free_while_more_is_made_is_found(home: Home, monkeypatch: pytest.MonkeyPatch):
    """Write all that others have queued meanwhile: then there is nothing left to wait for, and room."""
    broker = await home.open()
    committer, make_room = broker.shard.committer, broker.shard.writer.make_room

    async def slowly(size: int, entries: int) -> bool:
        made = await make_room(size, entries)
        await committer.wait(committer.submitted)
        return made

    monkeypatch.setattr(broker.shard.writer, "make_room", slowly)
    await broker.create_topic("t")
    some = [bytes(50_000)] * 40
    await asyncio.gather(*(broker.publish("t", some) for _ in range(24)))
    assert broker.stats("t").messages == 24 * 40


@in_loop
async def test_many_large_publishes_at_once_wait_for_room_and_get_no_error_of_a_full_disk(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    some = [bytes(50_000)] * 40
    await asyncio.gather(*(broker.publish("t", some) for _ in range(24)))
    assert broker.stats("t").messages == 24 * 40
