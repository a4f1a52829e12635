"""Producers that repeat themselves, and messages with ids of their own."""

import asyncio

import pytest

from tests.behaviour.world import Home, bodies, drain, in_loop, reader_of
from wherry import DuplicateId, InvalidInput, Message, NotFound, OutOfSequence, PublishOptions
from wherry.model.limits import PRODUCER_CALLS_MAX


def as_producer(sequence: int, producer: str = "p") -> PublishOptions:
    return PublishOptions(producer=producer, sequence=sequence)


@pytest.mark.parametrize("partitions", [1, 4])
@in_loop
async def test_a_repeated_call_is_answered_with_the_old_offsets(home: Home, how: str, partitions: int):
    broker = await home.open()
    await broker.create_topic("t", partitions=partitions)
    await broker.subscribe("t", "readers")
    first = await broker.publish("t", bodies(3), as_producer(0))
    await broker.publish("t", [b"of another"], as_producer(0, "q"))
    second = await broker.publish("t", bodies(3, "n"), as_producer(3))
    for _ in range(3):
        broker = await home.again(how)
        for sequence, sent, answer in ((0, bodies(3), first), (3, bodies(3, "n"), second)):
            again = await broker.publish("t", sent, as_producer(sequence))
            assert again.repeated
            assert (again.partition.tolist(), again.offset.tolist()) == (
                answer.partition.tolist(),
                answer.offset.tolist(),
            )
    seen = await drain(await broker.consumer("t", "readers"))
    assert sorted(seen) == sorted([*bodies(3), *bodies(3, "n"), b"of another"])


@in_loop
async def test_a_repeat_is_answered_row_by_row_also_when_keys_spread_the_call(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=5)
    for sequence in range(0, 50, 10):
        sent = [Message(payload=b"x", key=None if n % 3 == 0 else f"k{sequence + n}") for n in range(10)]
        first = await broker.publish("t", sent, as_producer(sequence))
        for _ in range(6):
            again = await broker.publish("t", sent, as_producer(sequence))
            assert (again.repeated, again.ids()) == (True, first.ids())
    broker = await home.again(how)
    assert (await broker.publish("t", sent, as_producer(40))).ids() == first.ids()
    assert broker.stats("t").messages == 50


@in_loop
async def test_the_same_call_twice_at_once_is_stored_once(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    answers = await asyncio.gather(*(broker.publish("t", bodies(2), as_producer(0)) for _ in range(5)))
    assert [answer.repeated for answer in answers] == [False, True, True, True, True]
    assert {tuple(answer.offset.tolist()) for answer in answers} == {(0, 1)}


@in_loop
async def test_the_same_numbers_with_another_fingerprint_are_refused(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    marked = {mark: PublishOptions(producer="p", sequence=0, fingerprint=mark) for mark in (1, (1 << 63) - 1)}
    await broker.publish("t", b"x", marked[(1 << 63) - 1])
    await broker.publish("t", b"x", as_producer(0, "without"))
    broker = await home.again(how)
    assert (await broker.publish("t", b"x", marked[(1 << 63) - 1])).repeated
    assert (await broker.publish("t", b"y", as_producer(0))).repeated, "nothing to compare"
    again = PublishOptions(producer="without", sequence=0, fingerprint=1)
    assert (await broker.publish("t", b"x", again)).repeated, "nothing to compare with"
    with pytest.raises(OutOfSequence, match="'p': sequence 0 was used before with other messages"):
        await broker.publish("t", b"y", marked[1])
    assert broker.stats("t").messages == 2
    for wrong in (PublishOptions(fingerprint=1), PublishOptions(producer="p", sequence=0, fingerprint=1 << 63)):
        with pytest.raises(InvalidInput, match="fingerprint"):
            await broker.publish("t", b"x", wrong)


@in_loop
async def test_gaps_are_allowed_and_overlaps_are_refused(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.publish("t", bodies(5), as_producer(10))
    await broker.publish("t", bodies(5), as_producer(100))
    broker = await home.again(how)
    for sequence, count in ((10, 4), (10, 6), (12, 5), (99, 5), (9, 1), (104, 1)):
        with pytest.raises(OutOfSequence, match="'p'"):
            await broker.publish("t", bodies(count), as_producer(sequence))
    await broker.publish("t", bodies(1), as_producer(105))
    assert broker.stats("t").messages == 11


@in_loop
async def test_the_last_calls_are_remembered_and_an_older_one_is_refused_not_stored_again(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    for sequence in range(PRODUCER_CALLS_MAX + 1):
        await broker.publish("t", [b"x"], as_producer(sequence))
    broker = await home.again(how)
    assert (await broker.publish("t", [b"x"], as_producer(1))).repeated
    with pytest.raises(OutOfSequence, match="older"):
        await broker.publish("t", [b"x"], as_producer(0))
    assert broker.stats("t").messages == PRODUCER_CALLS_MAX + 1


@in_loop
async def test_a_refused_call_uses_no_sequence(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=1)
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"1"], as_producer(0))
    with pytest.raises(Exception, match="full"):
        await broker.publish("t", [b"2"], as_producer(1))
    await drain(reader)
    assert not (await broker.publish("t", [b"2"], as_producer(1))).repeated
    for half in (PublishOptions(producer="p"), PublishOptions(sequence=1), as_producer(-1)):
        with pytest.raises(InvalidInput, match="sequence"):
            await broker.publish("t", b"x", half)


@pytest.mark.rows("D39")
@in_loop
async def test_an_id_is_unique_in_its_topic_while_its_message_is_there(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.create_topic("other")
    await broker.subscribe("t", "readers")
    await broker.publish("t", [Message(payload=b"1", id="order-1"), Message(payload=b"no id")])
    await broker.publish("other", [Message(payload=b"1", id="order-1")])
    broker = await home.again(how)
    with pytest.raises(DuplicateId, match="'order-1'") as refused:
        await broker.publish("t", [Message(payload=b"new", id="order-2"), Message(payload=b"again", id="order-1")])
    assert refused.value.ids == ["order-1"]
    with pytest.raises(DuplicateId, match="order-3"):
        await broker.publish("t", [Message(payload=b"a", id="order-3"), Message(payload=b"b", id="order-3")])
    assert broker.stats("t").messages == 2  # nothing of either call
    await broker.publish("t", [Message(payload=b"new", id="order-2")])


@pytest.mark.rows("D39")
@in_loop
async def test_an_id_is_free_again_when_its_message_is_gone_and_not_while_it_is_dead(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    names = ("acked", "cancelled", "dead", "leased")
    await broker.publish("t", [Message(payload=name.encode(), id=name) for name in names])
    await broker.cancel("t", "cancelled")
    delivery = await reader.pull()
    rows = {message.id: row for row, message in enumerate(delivery)}
    await delivery.ack([rows["acked"]])
    await delivery.dead_letter([rows["dead"]])
    broker = await home.again(how)
    for name in ("dead", "leased"):
        with pytest.raises(DuplicateId):
            await broker.publish("t", [Message(payload=b"new", id=name)])
    await broker.publish("t", [Message(payload=b"new", id=name) for name in ("acked", "cancelled")])
    assert (await broker.get("t", "acked")).column("payload").to_pylist() == [b"new"]


@pytest.mark.rows("D39")
@in_loop
async def test_a_message_is_addressed_by_its_own_id_or_by_its_place(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=300)
    await broker.subscribe("t", "readers")
    await broker.publish("t", [Message(payload=b"0", id="mine")], PublishOptions(partition=299))
    answer = await broker.publish("t", [b"1"], PublishOptions(partition=299))
    assert answer.ids() == ["299-1"]
    broker = await home.again(how)
    assert await broker.state_of("t", "readers", "mine") == "waiting"
    for message_id, body in (("mine", b"0"), ("299-0", b"0"), ("299-1", b"1")):
        assert (await broker.get("t", message_id)).column("payload").to_pylist() == [body]
    for unknown in ("299-2", "298-0", "0-0", "yours"):
        assert (await broker.get("t", unknown)).num_rows == 0
        with pytest.raises(NotFound):
            await broker.cancel("t", unknown)
    received = await (await broker.consumer("t", "readers")).pull()
    assert [message.id for message in received] == ["mine", "299-1"]


@pytest.mark.rows("D39")
@in_loop
async def test_thousands_of_ids_are_distinguished(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    for start in range(0, 5_000, 1_000):
        await broker.publish("t", [Message(payload=b"x", id=f"id {n}") for n in range(start, start + 1_000)])
    broker = await home.again(how)
    for number in (0, 999, 1_000, 2_345, 4_999):
        assert (await broker.get("t", f"id {number}")).column("id").to_pylist() == [f"id {number}"]
        with pytest.raises(DuplicateId):
            await broker.publish("t", [Message(payload=b"x", id=f"id {number}")])
    assert (await broker.get("t", "id 5000")).num_rows == 0
