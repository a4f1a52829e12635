"""A topic as a log: reading by offsets, how far to go, and what a reader of the log is done with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pyarrow as pa
import pytest

import wherry
from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, in_virtual_time, reader_of
from wherry.core.decide import upkeep
from wherry.model.calls.where import Where


async def read(batches: AsyncIterator[pa.RecordBatch]) -> list[tuple[int, bytes]]:
    """Return offsets and payloads."""
    rows = []
    async for batch in batches:
        rows += list(zip(batch.column("offset").to_pylist(), batch.column("payload").to_pylist(), strict=True))
    return rows


def numbered(count: int, first: int = 0, size: int = 1_000) -> list[bytes]:
    return [b"%d " % n + bytes(size) for n in range(first, first + count)]


def numbers(rows: list[tuple[int, bytes]]) -> list[int]:
    return [int(payload.split()[0]) for _, payload in rows]


@in_loop
async def test_the_log_is_read_from_memory_and_segments_alike(home: Home, how: str):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    for start in range(0, 5_000, 500):
        await broker.publish("t", numbered(500, start))
    for start in range(5_000, 5_020):
        await broker.publish("t", numbered(1, start))
    broker = await home.again(how)
    if how != "crashed":
        assert broker.shard.store.segment_paths()
    rows = await read(broker.history("t"))
    assert numbers(rows) == list(range(5_020)) == [offset for offset, _ in rows]
    assert numbers(await read(broker.history("t", 0, 777, 4_321))) == list(range(777, 4_321))
    assert await read(broker.history("t", 0, 9_000, 9_999)) == []


@in_loop
async def test_what_is_gone_is_left_out_and_what_is_left_is_read(home: Home, clock: VirtualClock):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    await broker.publish("t", numbered(3_000))
    await broker.checkpoint()
    delivery = await consumer.pull(2_000)
    await delivery.ack(np.arange(0, 2_000, 2))
    await broker.cancel("t", "0-2500")
    expected = [n for n in range(3_000) if (n >= 2_000 or n % 2) and n != 2_500]
    assert numbers(await read(broker.history("t"))) == expected
    await delivery.ack(np.arange(1, 2_000, 2))
    assert numbers(await read(broker.history("t", 0, 100))) == expected[1_000:]


@pytest.mark.rows("A14")
@in_loop
async def test_columns_and_conditions_are_pushed_down(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    for n in range(20):
        message = wherry.Message(payload=b"%d" % n, key=f"k{n % 3}", priority=n, headers={"even": str(n % 2 == 0)})
        await broker.publish("t", [message])
        clock.advance(1_000)

    async def found(**conditions: object) -> list[int]:
        where = Where(**conditions)  # type: ignore[arg-type]
        return [int(payload) for _, payload in await read(broker.history("t", where=where))]

    at = clock.now_ms - 20_000
    assert await found(keys=["k0"]) == list(range(0, 20, 3))
    assert await found(keys=["k0", "k1"], headers={"even": "True"}) == [0, 4, 6, 10, 12, 16, 18]
    assert await found(priority_min=5, priority_max=7) == [5, 6, 7]
    assert await found(from_ms=at + 3_000, to_ms=at + 6_000) == [3, 4, 5]
    assert await found(headers={"other": "x"}) == []
    batches = [batch async for batch in broker.history("t", columns=["partition", "key"])]
    assert all(batch.schema.names == ["partition", "key"] for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 20
    for bad in ("payload", ["nothing"], ["key", "key"]):
        with pytest.raises(wherry.InvalidInput, match="columns"):
            await read(broker.history("t", columns=bad))
    with pytest.raises(wherry.InvalidInput, match="priority_min"):
        await found(priority_min=-1)


@in_loop
async def test_extents_and_times_show_where_to_begin(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    assert broker.extents("t") == [(0, 0, 0), (1, 0, 0)]
    await broker.publish("t", bodies(3), wherry.PublishOptions(partition=1))
    clock.advance(10_000)
    await broker.publish("t", bodies(2), wherry.PublishOptions(partition=1))
    assert broker.extents("t") == [(0, 0, 0), (1, 0, 5)]
    assert broker.offsets_at("t", clock.now_ms) == {0: 0, 1: 3}
    assert broker.offsets_at("t", clock.now_ms - 10_000) == {0: 0, 1: 0}
    assert broker.offsets_at("t", clock.now_ms + 1) == {0: 0, 1: 5}


@in_loop
async def test_no_step_exceeds_the_budget_whatever_the_sizes(home: Home):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("a", partitions=3)
    await broker.create_topic("b")
    chance = np.random.default_rng(5)
    sizes: dict[tuple[str, int], list[int]] = {}
    for _ in range(60):
        topic, partition = ("a", int(chance.integers(3))) if chance.random() < 0.7 else ("b", 0)
        some = [int(size) for size in np.minimum(chance.pareto(0.8, chance.integers(1, 60)) * 50, 20_000)]
        sizes.setdefault((topic, partition), []).extend(some)
        await broker.publish(topic, [bytes(size) for size in some], wherry.PublishOptions(partition=partition))
    await broker.checkpoint()
    at: dict[str, dict[int, int]] = {"a": {}, "b": {}}
    steps = 0
    while True:
        end = await broker.reach(at, messages_max=25, bytes_max=30_000)
        taken = [
            size
            for topic, ends in end.items()
            for number, stop in ends.items()
            for size in sizes.get((topic, number), [])[at[topic].get(number, 0) : stop]
        ]
        if not taken:
            break
        assert len(taken) <= 25 and sum(taken) <= 30_000
        at, steps = end, steps + 1
    assert at == {
        "a": {number: len(sizes[("a", number)]) for number in range(3)},
        "b": {0: len(sizes[("b", 0)])},
    }
    assert steps < 3 * sum(len(each) for each in sizes.values()) / 25 + 3 * sum(map(sum, sizes.values())) / 30_000


@in_loop
async def test_a_message_above_the_budget_is_read_alone_and_a_stop_is_kept(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.publish("t", [b"x", bytes(5_000), b"y", b"z"])
    reached = [0]
    for _ in range(3):
        reached.append((await broker.reach({"t": {0: reached[-1]}}, bytes_max=100))["t"][0])
    assert reached == [0, 1, 2, 4]
    assert await broker.reach({"t": {0: 0}}, stop={"t": {0: 3}}) == {"t": {0: 3}}
    for field, value in (("messages_max", 0), ("bytes_max", 0), ("wait_ms", -1)):
        with pytest.raises(wherry.InvalidInput, match=field):
            await broker.reach({"t": {0: 0}}, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(wherry.InvalidInput, match="partition"):
        await broker.reach({"t": {1: 0}})


@in_virtual_time
async def test_a_reader_waits_for_what_comes(broker: wherry.Broker, clock: VirtualClock):
    await broker.create_topic("a")
    await broker.create_topic("b")
    here = {"a": {0: 0}, "b": {0: 0}}
    began = clock.now_ms
    assert await broker.reach(here, wait_ms=500) == here
    assert clock.now_ms - began == 500
    waiting = asyncio.create_task(broker.reach(here, wait_ms=60_000))
    await asyncio.sleep(1)
    await broker.publish("b", b"new")
    assert await waiting == {"a": {0: 0}, "b": {0: 1}}
    assert not broker.shard.arrivals
    waiting = asyncio.create_task(broker.reach(here | {"b": {0: 1}}, wait_ms=60_000))
    await asyncio.sleep(1)
    await broker.delete_topic("a")
    with pytest.raises(wherry.NotFound, match="topic"):
        await waiting


@pytest.mark.rows("A20")
@in_loop
async def test_a_log_reader_reports_how_far_it_is_and_the_queue_keeps_the_rest(
    home: Home, clock: VirtualClock, how: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("wherry.core.decide.span.ADVANCE_STEP", 100)
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.subscribe("t", "spark")
    for number in range(2):
        await broker.publish("t", numbered(500, size=1), wherry.PublishOptions(partition=number))
    clock.advance(5_000)
    await broker.advance("t", "spark", {0: 350, 1: 20})
    await broker.advance("t", "spark", {0: 10})
    broker = await home.again(how)
    (stats,) = broker.stats("t").subscriptions
    assert (stats.lag, stats.lag_ms) == (1_000 - 370, 5_000)
    assert broker.extents("t") == [(0, 350, 500), (1, 20, 500)]
    assert numbers(await read(broker.history("t", 0, 0))) == list(range(350, 500))
    await broker.advance("t", "spark", {0: 10_000, 1: 10_000})
    assert broker.stats("t").subscriptions[0].lag == 0


@in_loop
async def test_a_dead_letter_stays_where_a_log_reader_passes(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", expired="dead-letter")
    await broker.subscribe("t", "spark")
    soon = wherry.Message(payload=b"", expires_ms=clock.now_ms + 1_000)
    await broker.publish("t", [wherry.Message(payload=b""), soon, *(wherry.Message(payload=b"") for _ in range(3))])
    clock.advance(2_000)
    assert broker.stats("t").dead == 1
    await broker.advance("t", "spark", {0: 5})
    (stats,) = broker.stats("t").subscriptions
    assert (stats.dead, stats.lag) == (1, 0)


@in_loop
async def test_what_a_consumer_holds_is_not_passed_over(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t", "both")
    await broker.publish("t", bodies(5))
    held = await consumer.pull(2)
    with pytest.raises(wherry.NotWaiting, match=r"'0-0'.*leased"):
        await broker.advance("t", "both", {0: 5})
    await held.ack()
    await broker.advance("t", "both", {0: 4})
    assert await drain(consumer) == [b"m4"]


@in_loop
async def test_history_that_is_lost_is_reported_and_a_cancelled_message_is_no_loss(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("stream", keep="bytes", keep_bytes=20_000)
    for start in range(0, 40, 10):
        await broker.publish("stream", numbered(10, start))
    await asyncio.sleep(0)
    for entry in upkeep.housekeeping(broker.shard.state, clock.wall_us()):
        broker.shard.commit([entry])
    first = broker.extents("stream")[0].start
    assert first > 0
    with pytest.raises(wherry.HistoryLost, match=f"offset 3 is gone.*still there is {first}") as caught:
        await broker.reach({"stream": {0: 3}})
    assert (caught.value.partition, caught.value.offset, caught.value.first) == (0, 3, first)
    with pytest.raises(wherry.HistoryLost):
        await read(broker.history("stream", 0, 3, strict=True))
    assert numbers(await read(broker.history("stream", 0, 3))) == list(range(first, 40))

    await broker.create_topic("queue")
    await broker.subscribe("queue", "spark")
    await broker.publish("queue", bodies(6))
    await broker.advance("queue", "spark", {0: 2})
    await broker.cancel("queue", "0-2", "0-3")
    assert await broker.reach({"queue": {0: 2}}) == {"queue": {0: 6}}
    with pytest.raises(wherry.HistoryLost, match="offset 1 "):
        await broker.reach({"queue": {0: 1}})


@in_loop
async def test_stages_of_several_writers_are_one_commit(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.stage("q/1/0/a", "t", [b"a0"])
    await broker.stage("q/1/1/a", "t", [b"a1"])
    await broker.stage("q/1/1/b", "t", [b"lost race"])
    broker = await home.again(how)
    answer = await broker.commit("q/1", ["q/1/0/a", "q/1/1/a"])
    assert answer == [("t", 0, 0, 1), ("t", 0, 1, 1)]
    broker = await home.again(how)
    await broker.stage("q/1/0/c", "t", [b"a0"])
    assert await broker.commit("q/1", ["q/1/0/c"]) == answer
    assert "q/1/0/c" not in broker.shard.state.stages.open
    assert await broker.commit("q/2", []) == []
    assert await broker.commit("q/2", ["never staged"]) == []
    with pytest.raises(wherry.NotFound, match="never staged"):
        await broker.commit("q/3", ["q/1/1/b", "never staged"])
    with pytest.raises(wherry.InvalidInput, match="stages"):
        await broker.commit("q/3", "q/1/1/b")
    await broker.abort("q/1/1/b")
    assert [payload for _, payload in await read(broker.history("t"))] == [b"a0", b"a1"]
