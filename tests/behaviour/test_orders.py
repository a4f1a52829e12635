"""In which order messages are delivered: fifo, priority, and what an order promises to consumers."""

import asyncio
from random import Random

import pyarrow as pa
import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import InvalidInput, Message, PublishOptions, Retry


def ranked(*priorities: int) -> list[Message]:
    return [Message(payload=str(priority).encode(), priority=priority) for priority in priorities]


@pytest.mark.rows("K1")
@in_loop
async def test_a_fifo_topic_keeps_the_order_of_arrival_whether_producers_wait_or_not(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    flying = []
    for number in range(40):
        publishing = asyncio.create_task(broker.publish("t", f"{number}"))
        await asyncio.sleep(0)
        if number % 3 == 0:
            await publishing
        flying.append(publishing)
    await asyncio.gather(*flying)
    assert await drain(reader, batch=7) == [f"{number}".encode() for number in range(40)]


@pytest.mark.rows("K1")
@in_loop
async def test_fifo_order_survives_a_restart_in_the_middle_of_reading(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(10))
    first = await reader.pull(4)
    await first.ack([0, 2])  # 1 and 3 are out when the process ends
    broker = await home.again(how)
    await broker.publish("t", [b"later"])
    seen = await drain(await broker.consumer("t", "readers"), batch=3)
    assert seen == [b"m1", b"m3", *bodies(10)[4:], b"later"]


@pytest.mark.rows("K7")
@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
@in_loop
async def test_without_a_reader_messages_are_kept_for_the_first_one(home: Home, how: str, order: str):
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=3)
    for number in range(6):
        await broker.publish("t", f"{number}")
        home.clock.advance(1)
    assert broker.stats("t").messages == 6
    broker = await home.again(how)
    reader = await reader_of(broker, "t")
    seen = await drain(reader)
    assert sorted(seen) == [f"{number}".encode() for number in range(6)]
    assert order != "timeline" or seen == sorted(seen)  # without a due time, a message is due when it was published
    assert broker.stats("t").messages == 0


@pytest.mark.rows("D1", "D3", "A7")
@in_loop
async def test_the_smallest_priority_leaves_first_and_equals_in_the_order_of_arrival(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    await broker.subscribe("t", "readers")
    await broker.publish("t", ranked(65_535, 0, 7))
    await broker.publish("t", [Message(payload=b"7, second", priority=7), Message(payload=b"without one")])
    broker = await home.again(how)
    await broker.publish("t", ranked(1))
    reader = await broker.consumer("t", "readers")
    assert await drain(reader, batch=2) == [b"0", b"1", b"7", b"7, second", b"without one", b"65535"]


@pytest.mark.rows("D3")
@pytest.mark.parametrize("priority", [-1, 65_536])
@in_loop
async def test_a_priority_outside_its_range_is_refused_and_nothing_is_stored(home: Home, priority: int):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    with pytest.raises(InvalidInput, match="priority"):
        await broker.publish("t", [Message(payload=b"ok"), Message(payload=b"bad", priority=priority)])
    assert broker.stats("t").messages == 0


@pytest.mark.rows("D3", "A7")
@in_loop
async def test_each_pull_takes_the_smallest_over_all_partitions_it_reads(home: Home):
    broker = await home.open()
    await broker.create_topic("t", order="priority", partitions=5)
    reader = await reader_of(broker, "t")
    random = Random(5)
    values = [random.randrange(65_536) for _ in range(500)]
    options = [PublishOptions(partition=number % 5) for number in range(500)]
    await asyncio.gather(*(broker.publish("t", ranked(v), o) for v, o in zip(values, options, strict=True)))
    seen: list[int] = []
    for size in (1, 2, 50, 447):
        delivery = await reader.pull(size)
        got = [int(body) for body in delivery.payloads()]
        assert len(got) == size
        seen += got
        await delivery.ack()
    assert seen == sorted(values)


@pytest.mark.rows("D3", "A7")
@in_loop
async def test_an_urgent_message_overtakes_a_backlog_that_is_already_being_read(home: Home):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    reader = await reader_of(broker, "t")
    await broker.publish("t", ranked(*[100] * 3_000))
    await (await reader.pull(1)).ack()
    await broker.publish("t", ranked(5))
    assert (await reader.pull(1)).payloads() == [b"5"]


@pytest.mark.rows("D3", "A8")
@in_loop
async def test_an_urgent_message_overtakes_also_where_keys_keep_their_order(home: Home):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    reader = await reader_of(broker, "t", key_order=True)
    await broker.publish("t", [Message(payload=b"slow", key=str(n), priority=100) for n in range(10)])
    await (await reader.pull(1)).ack()
    await broker.publish("t", [Message(payload=b"urgent", key="new", priority=5)])
    assert (await reader.pull(1)).payloads() == [b"urgent"]


@pytest.mark.rows("D4")
@in_loop
async def test_priority_holds_for_each_consumer_over_what_it_reads_and_not_between_them(home: Home):
    broker = await home.open()
    await broker.create_topic("t", order="priority", partitions=2)
    one = await reader_of(broker, "t")
    other = await broker.consumer("t", "readers")
    (own_of_one,), (own_of_other,) = one.partitions, other.partitions
    await broker.publish("t", ranked(9, 3, 6), PublishOptions(partition=own_of_one))
    await broker.publish("t", ranked(1, 0), PublishOptions(partition=own_of_other))
    assert await drain(one, batch=3) == [b"3", b"6", b"9", b"0", b"1"]  # own partitions first
    await broker.publish("t", ranked(9, 3, 6), PublishOptions(partition=own_of_one))
    await broker.publish("t", ranked(1, 0), PublishOptions(partition=own_of_other))
    assert (await one.pull(2)).payloads() == [b"3", b"6"]
    assert (await other.pull(5)).payloads() == [b"0", b"1"]


@pytest.mark.rows("D3", "A23")
@in_loop
async def test_a_failed_message_comes_back_at_its_priority(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=100, jitter=0.0))
    await broker.publish("t", ranked(1, 2, 3))
    await (await reader.pull(1)).nack()
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    await (await reader.pull(1)).ack()
    clock.advance(100)
    assert await drain(reader) == [b"1", b"3"]


@pytest.mark.rows("D40")
@in_loop
async def test_a_producer_names_the_partition_and_its_messages_are_worked_off_in_order(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=4)
    await broker.subscribe("t", "readers", assignment="ordered")
    for number in range(20):
        answer = await broker.publish("t", f"{number}", PublishOptions(partition=2))
        assert answer.partition.tolist() == [2]
        await broker.publish("t", "noise", PublishOptions(partition=number % 2))
    broker = await home.again(how)
    readers = [await broker.consumer("t", "readers") for _ in range(4)]
    owner = next(reader for reader in readers if 2 in reader.partitions)
    assert await drain(owner, batch=3) == [f"{number}".encode() for number in range(20)]


@pytest.mark.rows("D40")
@pytest.mark.parametrize("partition", [-1, 4, 65_535, True])
@in_loop
async def test_a_partition_that_the_topic_does_not_have_is_refused(home: Home, partition: int):
    broker = await home.open()
    await broker.create_topic("t", partitions=4)
    with pytest.raises(InvalidInput, match=r"partition.*0 to 3"):
        await broker.publish("t", [b"x"], PublishOptions(partition=partition))


@in_loop
async def test_a_key_always_leads_to_the_same_partition_and_calls_without_one_take_turns(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=8)
    keyed = [Message(payload=b"x", key=f"k{n % 10}") for n in range(50)]
    before = (await broker.publish("t", keyed)).partition.tolist()
    assert before[:10] * 5 == before
    assert len(set(before)) > 1
    broker = await home.again(how)
    assert (await broker.publish("t", keyed)).partition.tolist() == before
    assert sorted([int((await broker.publish("t", [b"x"])).partition[0]) for _ in range(8)]) == list(range(8))


@pytest.mark.rows("D19", "G8")
@in_loop
async def test_a_message_is_any_bytes_and_comes_back_as_they_were(home: Home, how: str):
    every_byte = bytes(range(256))
    given = [b"", b"\x00", every_byte * 100, b"{not json", "Grüße".encode("utf-16"), b"\xff\xfe\xfd"]
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    await broker.publish("t", given)
    await broker.publish("t", pa.record_batch({"payload": pa.array(given, pa.large_binary())}))
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "readers")) == given + given


@pytest.mark.rows("D19")
@in_loop
async def test_everything_a_message_carries_comes_back(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    due_ms = clock.now_ms - 5
    sent = Message(
        payload=b"x", id="mine", key="k", priority=9, due_ms=due_ms, headers={"a": "1", "": "empty"}, envelope=b"\x00e"
    )
    await broker.publish("t", [Message(payload=b"plain"), sent])
    broker = await home.again(how)
    delivery = await (await broker.consumer("t", "readers")).pull()
    plain, got = delivery.messages()
    assert (got.payload, got.id, got.key, got.priority, got.due_ms) == (b"x", "mine", "k", 9, due_ms)
    assert (got.headers, got.attempt, got.offset) == ({"a": "1", "": "empty"}, 1, 1)
    assert (plain.id, plain.key, plain.due_ms, plain.headers) == ("0-0", None, None, {})
    assert delivery.batch.column("envelope").to_pylist() == [None, b"\x00e"]
