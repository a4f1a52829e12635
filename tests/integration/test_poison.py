"""A message that breaks its worker: which ends of the work count as a failed attempt, in our own client.

The rows of the table "What counts as a failed attempt" in docs/semantics.md; `test_poison_wires.py` has those of the
other wires.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.worlds import Node, World, on_each
from wherry.client import consumer as consumers

AT_ONCE = wherry.Retry(attempts=3, first_ms=0, factor=1, cap_ms=0, jitter=0)
ROUNDS = 6
"""How often a worker is started again: more often than there are attempts."""


async def dead(world: World) -> list[tuple[bytes, int, str]]:
    """Return payload, attempts and error of each dead letter."""
    letters = await world.client.dead_letters("jobs")
    return [(row["payload"], row["attempts"], row["error"]) for row in letters.to_pylist()]


async def attempts(world: World) -> dict[bytes, int]:
    """Return the next attempt of each message that waits."""
    batch = await world.pull()
    found = {message.payload: message.attempt for message in batch}
    await batch.release()
    return found


@on_each
@pytest.mark.rows("G18")
async def test_an_error_in_the_loop_is_a_failed_attempt_with_its_text(world):
    await world.jobs(lease_ms=60_000, retry=AT_ONCE)
    await world.client.publish("jobs", [b"good", b"poison", b"other", b"last"])
    handled, seen = [], []
    for _ in range(ROUNDS):
        try:
            async with asyncio.timeout(5), world.client.consumer("jobs", "workers") as consumer:
                async for message in consumer:
                    if message.payload == b"poison":
                        seen.append(message.attempt)
                        raise ValueError("no JSON in line 1")
                    handled.append(message.payload)
                    await message.ack()
                    if len(handled) == 4 - 1:
                        break
            break
        except ValueError:
            await world.later(1)
    assert seen == [1, 2, 3]
    assert sorted(handled) == [b"good", b"last", b"other"]
    assert await dead(world) == [(b"poison", 3, "ValueError: no JSON in line 1")]


@on_each
@pytest.mark.rows("G18")
async def test_what_the_loop_was_not_shown_is_handed_back_untouched(world):
    await world.jobs(lease_ms=60_000, retry=AT_ONCE)
    await world.client.publish("jobs", [b"%d" % n for n in range(40)])
    with pytest.raises(KeyError):
        async with world.client.consumer("jobs", "workers", ack="auto") as consumer:
            async for message in consumer:
                if message.payload == b"20":
                    raise KeyError("20")
    await world.later(1)
    assert await attempts(world) == {b"20": 2, **{b"%d" % n: 1 for n in range(21, 40)}}


@on_each
@pytest.mark.rows("G18")
async def test_all_that_is_in_hand_has_failed(world):
    """Fail all at once, since the broken one of several cannot be found; what was settled is not touched."""
    await world.jobs(lease_ms=60_000, retry=AT_ONCE)
    await world.client.publish("jobs", [b"%d" % n for n in range(30)])

    async def handle(message: wherry.Leased) -> None:
        if message.payload == b"2":
            raise RuntimeError("two")
        await asyncio.sleep(3_600)

    with pytest.raises(ExceptionGroup):
        async with world.client.consumer("jobs", "workers") as consumer, asyncio.TaskGroup() as work:
            async for message in consumer:
                if message.payload == b"0":
                    await message.ack()
                elif message.payload == b"1":
                    await message.nack(error="by hand")
                else:
                    work.create_task(handle(message))
                if message.payload == b"4":
                    break
            await asyncio.sleep(3_600)
    await world.later(1)
    counted = {b"1": 2, b"2": 2, b"3": 2, b"4": 2}
    assert await attempts(world) == counted | {b"%d" % n: 1 for n in range(5, 30)}


@on_each
@pytest.mark.rows("G18")
async def test_a_group_of_errors_is_reported_by_its_members(world):
    await world.jobs(lease_ms=60_000, retry=wherry.Retry(attempts=1))
    await world.client.publish("jobs", [b"a"])

    async def fail(text: str) -> None:
        raise OSError(text)

    with pytest.raises(ExceptionGroup):
        async with world.client.consumer("jobs", "workers") as consumer, asyncio.TaskGroup() as work:
            async for _ in consumer:
                work.create_task(fail("disk \udc80"))
                work.create_task(fail("x" * 5_000))
                break
    ((payload, count, error),) = await dead(world)
    assert (payload, count) == (b"a", 1)
    assert error.startswith("OSError: disk ?; OSError: xxx")
    assert len(error) == 1_024


@on_each
@pytest.mark.rows("G18")
async def test_an_error_about_the_broker_is_not_held_against_the_messages(world):
    await world.jobs(lease_ms=60_000, retry=AT_ONCE)
    await world.client.publish("jobs", [b"a"])
    ours = [wherry.Unavailable("away"), wherry.StaleLease(1, "is over"), wherry.DiskFull(1, 0), wherry.Closed("closed")]
    for fault in [*ours, ExceptionGroup("all of them", ours)]:
        with pytest.raises(type(fault)):
            async with world.client.consumer("jobs", "workers") as consumer:
                async for _ in consumer:
                    raise fault
    assert await attempts(world) == {b"a": 1}
    with pytest.raises(ExceptionGroup):
        async with world.client.consumer("jobs", "workers") as consumer:
            async for _ in consumer:
                raise ExceptionGroup("not only ours", [*ours, ValueError("a")])
    await world.later(1)
    assert await attempts(world) == {b"a": 2}


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_worker_that_fails_while_the_broker_is_away_does_not_wait_a_lease_long(tmp_path, monkeypatch, ack):
    monkeypatch.setattr(consumers, "LEAVE_S", 0.3)

    async def main() -> None:
        async with Node(tmp_path / "home") as node, wherry.connect(node.url) as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers", lease_ms=3_600_000)
            await client.publish("jobs", [b"a", b"b"])
            with pytest.raises(ValueError, match="b"):
                async with client.consumer("jobs", "workers", ack=ack, ack_linger_ms=1_000) as consumer:
                    async for message in consumer:
                        if message.payload == b"b":
                            await node.kill()
                            raise ValueError("b")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("wherry")]

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(in_time())


@on_each
@pytest.mark.rows("G18")
async def test_a_batch_in_hand_fails_as_a_whole(world):
    await world.jobs(lease_ms=60_000, retry=AT_ONCE)
    await world.client.publish("jobs", [b"%d" % n for n in range(8)])
    with pytest.raises(ZeroDivisionError):
        async with world.client.consumer("jobs", "workers", pull_messages=4) as consumer:
            async for batch in consumer.consume_batches():
                await batch.ack([0, 2])
                raise ZeroDivisionError
    await world.later(1)
    assert await attempts(world) == {b"1": 2, b"3": 2, b"4": 1, b"5": 1, b"6": 1, b"7": 1}


@pytest.mark.parametrize("end", ["break", "close", "cancel", "interrupt", "exit", "away"])
@pytest.mark.rows("G18")
def test_ends_that_are_no_fault_of_a_message_hand_back_untouched(end: str):
    async def work(client: wherry.Client) -> None:
        async with client.consumer("jobs", "workers") as consumer:
            async for message in consumer:
                if message.payload == b"0":
                    await message.ack()
                elif end in ("break", "close"):
                    break
                elif end == "cancel":
                    raise asyncio.CancelledError
                elif end == "interrupt":
                    raise KeyboardInterrupt
                elif end == "exit":
                    raise SystemExit(1)
                else:
                    consumer._fault = wherry.Unavailable("the broker is away")
                    raise consumer._fault
            if end == "close":
                await consumer.close()

    async def main() -> dict[bytes, int]:
        async with wherry.embedded() as client:
            world = World(client)
            await world.jobs(lease_ms=60_000, retry=AT_ONCE)
            await client.publish("jobs", [b"0", b"1", b"2"])
            ended: list[BaseException] = []
            try:
                await work(client)
            except BaseException as fault:
                ended.append(fault)
            assert len(ended) == (end not in ("break", "close"))
            return await attempts(world)

    assert asyncio.run(main()) == {b"1": 1, b"2": 1}


@pytest.mark.rows("G18")
def test_the_loop_of_the_sync_client_counts_in_the_same_way(wherry_broker: Any):
    wherry_broker.create_topic("jobs")
    wherry_broker.subscribe("jobs", "workers", retry=AT_ONCE)
    wherry_broker.publish("jobs", [b"%d" % n for n in range(20)])

    def work(by: str, ack: str) -> None:
        with wherry_broker.consumer("jobs", "workers", ack=ack) as consumer:
            if by == "batches":
                for batch in consumer.consume_batches():
                    batch.ack([0])
                    raise RuntimeError("a batch")
            for message in consumer:
                if message.payload == b"3":
                    if by == "break":
                        break
                    raise RuntimeError("three")
                if ack == "manual":
                    message.ack_later()

    work("break", "auto")
    assert next_attempts(wherry_broker) == {b"%d" % n: 1 for n in range(3, 20)}
    for ack in ("auto", "manual"):
        with pytest.raises(RuntimeError):
            work("messages", ack)
    assert next_attempts(wherry_broker) == {b"3": 3} | {b"%d" % n: 1 for n in range(4, 20)}
    with pytest.raises(RuntimeError):
        work("batches", "manual")
    counts = next_attempts(wherry_broker)
    assert b"3" not in counts, "it was acked"
    assert set(counts.values()) == {1, 2}, "those of the batch in hand, and those that were not shown"


def next_attempts(broker: Any) -> dict[bytes, int]:
    batch = broker.pull("jobs", "workers")
    found = {message.payload: message.attempt for message in batch}
    batch.release()
    return found


@pytest.mark.rows("G18")
def test_a_consumer_of_the_broker_in_process_counts_in_the_same_way():
    async def main() -> None:
        async with wherry.open() as broker:
            await broker.create_topic("jobs")
            await broker.subscribe("jobs", "workers", retry=AT_ONCE)
            await broker.publish("jobs", [b"0", b"1", b"2"])
            for ends in (None, asyncio.CancelledError(), ValueError("bad")):
                try:
                    async with await broker.consumer("jobs", "workers") as consumer:
                        delivery = await consumer.pull(2)
                        assert [message.attempt for message in delivery] == [1, 1]
                        if ends is not None:
                            raise ends
                except (asyncio.CancelledError, ValueError):
                    pass
            async with await broker.consumer("jobs", "workers") as consumer:
                delivery = await consumer.pull()
                assert {message.payload: message.attempt for message in delivery} == {b"0": 2, b"1": 2, b"2": 1}
                await delivery.dead_letter([0])

    asyncio.run(main())


KILLED = """
import asyncio, os, sys
import wherry

async def main():
    async with wherry.connect(sys.argv[1], wire=sys.argv[2]) as client:
        async with client.consumer("jobs", "workers", pull_messages=1, buffer_messages=1) as consumer:
            async for message in consumer:
                if message.payload == b"poison":
                    os._exit(9)
                await message.ack()
                return

asyncio.run(main())
"""


@pytest.mark.parametrize(("wire", "error"), [("native", "the connection was lost"), ("http", "the lease expired")])
@pytest.mark.rows("G18")
def test_a_message_that_kills_its_process_each_time_is_a_dead_letter_in_the_end(tmp_path: Path, wire: str, error: str):
    async def main() -> None:
        async with asyncio.timeout(50), Node(tmp_path / "home") as node, wherry.connect(node.url) as client:
            world = World(client)
            await world.jobs(lease_ms=300, retry=wherry.Retry(attempts=2, first_ms=0, cap_ms=0, jitter=0))
            await client.publish("jobs", [b"poison", b"good"])
            codes = []
            for _ in range(2):
                worker = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, node.url, wire)
                codes.append(await worker.wait())
                while (await client.stats("jobs")).subscriptions[0].leased:  # noqa: ASYNC110  no event to wait for
                    await asyncio.sleep(0.05)
            assert codes == [9, 9]
            assert await dead(world) == [(b"poison", 2, error)]
            assert await attempts(world) == {b"good": 1}

    asyncio.run(main())
