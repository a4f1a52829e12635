"""Streams of the client: what is pushed, what is settled, and what is lost with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import wherry
from tests.unit.client.native.peer import Peer, turn
from wherry.client.acks import AckSender
from wherry.client.batch import Batch
from wherry.client.native.rows import PushedRows, rows_of
from wherry.client.native.stream import ClientStream
from wherry.client.requests import Caller, SubscriptionRequests
from wherry.model.schema import DELIVERED
from wherry.wire.native.codec.deliveries import encode_deliver
from wherry.wire.native.codec.documents import SubscribeTerms
from wherry.wire.native.codec.frames import Kind
from wherry.wire.native.codec.rows import PLAIN, DeliveredRow, RowFields
from wherry.wire.native.codec.settles import decode_renew, decode_settle


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 10))


def row(offset: int, token: int = 77, payload: bytes = b"hi", fields: RowFields = PLAIN) -> DeliveredRow:
    return DeliveredRow(token, 0, offset, 1_800_000_000_000_000, 1, payload, fields)


class Reading:
    """A stream with what it was pushed."""

    def __init__(self, credit: int = 10, *, acks: bool = True) -> None:
        self.peer = Peer()
        self.batches: list[Batch] = []
        requests = SubscriptionRequests(Caller(self), "jobs", "workers")  # type: ignore[arg-type]
        self.stream = ClientStream(self.peer.session, requests, self._take)
        self.stream.subscribe(SubscribeTerms(topic="jobs", subscription="workers", credit=credit))
        self.peer.subscribed(self.stream, acks=acks)
        self.acks = AckSender(0.0, 1.0)

    def _take(self, batch: Batch, size: int) -> None:
        batch.acks = self.acks
        self.batches.append(batch)

    async def push(self, *rows: DeliveredRow) -> Batch:
        self.peer.send(encode_deliver(1, rows))
        await turn()
        self.peer.frames.clear()
        return self.batches[-1]


def test_an_ack_is_sent_at_once_and_the_acks_of_a_turn_are_one_write():
    async def main() -> None:
        reading = Reading()
        batch = await reading.push(row(1), row(2), row(3))
        before = reading.peer.writes
        acks = [asyncio.create_task(message.ack()) for message in batch.messages()[:2]]
        await turn()
        assert reading.peer.writes == before + 1
        parts = [decode_settle(frame[3]).parts for frame in reading.peer.frames]
        assert parts == [[(77, [(1, 1)])], [(77, [(2, 1)])]]
        assert batch.open == 3
        reading.peer.settled(1, 2)
        await asyncio.gather(*acks)
        assert batch.open == 1

    run(main)


def test_an_ack_that_is_not_waited_for_any_more_counts():
    async def main() -> None:
        reading = Reading()
        batch = await reading.push(row(1), row(2))
        acking = asyncio.create_task(batch.messages()[0].ack())
        await turn()
        acking.cancel()
        await turn()
        reading.peer.settled(1)
        assert batch.open == 1
        assert not batch.claim_row(0)

    run(main)


def test_a_message_is_acked_once():
    async def main() -> None:
        reading = Reading()
        [message] = await reading.push(row(1))
        message.ack_later()
        await turn()
        assert [frame[0] for frame in reading.peer.frames] == [Kind.SETTLE]
        again = asyncio.create_task(message.ack())
        reading.peer.settled(1)
        await again
        assert len(reading.peer.frames) == 1
        await reading.acks.flush()

    run(main)


def test_a_late_ack_is_reported_and_counted():
    async def main() -> None:
        reading = Reading()
        first, second = await reading.push(row(1)), await reading.push(row(2))
        acking = asyncio.create_task(first.messages()[0].ack())
        second.messages()[0].ack_later()
        await turn()
        reading.peer.refuse(1, "stale-lease")
        reading.peer.refuse(2, "stale-lease")
        with pytest.raises(wherry.StaleLease):
            await acking
        await reading.acks.flush()
        assert reading.acks.stale == 2
        assert isinstance(first.lost, wherry.StaleLease)

    run(main)


def test_an_ack_that_a_busy_broker_did_not_take_is_sent_again():
    async def main() -> None:
        reading = Reading()
        [message] = await reading.push(row(1))
        acking = asyncio.create_task(message.ack())
        await turn()
        reading.peer.refuse(1, "busy")
        await turn()
        await asyncio.sleep(0)
        assert len(reading.peer.frames) == 2
        reading.peer.settled(2)
        await acking

    run(main)


def test_other_settles_name_their_verb_and_options():
    async def main() -> None:
        reading = Reading()
        batch = await reading.push(row(4), row(5), row(9), row(2, token=78))
        work = [
            asyncio.create_task(batch.nack([0, 1], delay_ms=50, error="no")),
            asyncio.create_task(batch.dead_letter([2], reason="bad")),
            asyncio.create_task(batch.release([3])),
            asyncio.create_task(batch.renew(5_000)),
        ]
        await turn()
        nack, dead, release = (decode_settle(frame[3]) for frame in reading.peer.frames[:3])
        assert (nack.verb, nack.parts) == (2, [(77, [(4, 2)])])
        assert nack.options == b'{"delay_ms":50,"error":"no"}'
        assert (dead.verb, dead.options, release.verb) == (3, b'{"reason":"bad"}', 4)
        renewed = decode_renew(reading.peer.frames[3][3])
        assert (renewed.lease_ms, renewed.tokens) == (5_000, [77, 78])
        reading.peer.settled(1, 4)
        await asyncio.gather(*work)
        assert batch.open == 0

    run(main)


def test_a_connection_that_is_lost_takes_the_leases_with_it():
    async def main() -> None:
        reading = Reading()
        batch = await reading.push(row(1), row(2))
        acking = asyncio.create_task(batch.messages()[0].ack())
        await turn()
        reading.peer.session.connection_lost(None)
        with pytest.raises(wherry.StaleLease):
            await acking
        with pytest.raises(wherry.StaleLease):
            await batch.nack([1])
        batch.messages()[1].ack_later()
        await reading.acks.flush()
        assert reading.acks.stale == 2
        assert isinstance(reading.stream.ended.result(), wherry.Unavailable)

    run(main)


@pytest.mark.rows("D26")
def test_a_broker_that_pushes_more_than_it_was_granted_is_left():
    async def main() -> None:
        reading = Reading(credit=2)
        await reading.push(row(1), row(2))
        reading.stream.grant(1)
        await reading.push(row(3))
        reading.peer.send(encode_deliver(1, [row(4)]))
        assert reading.peer.is_cut
        assert len(reading.batches) == 2

    run(main)


def test_a_broker_that_pushes_on_a_stream_that_it_has_not_opened_is_left():
    async def main() -> None:
        reading = Reading()
        stream = ClientStream(reading.peer.session, reading.stream._requests, reading._take)
        stream.subscribe(SubscribeTerms(topic="jobs", subscription="workers", credit=10))
        reading.peer.send(encode_deliver(2, [row(1)]))
        assert reading.peer.is_cut
        assert reading.batches == []
        assert isinstance(stream.ended.result(), wherry.Unavailable)

    run(main)


def test_what_is_pushed_without_acks_is_settled():
    async def main() -> None:
        reading = Reading(acks=False)
        [message] = await reading.push(row(1))
        message.batch.acks = None  # a consumer that left has no acks
        await message.ack()
        assert reading.peer.frames == []

    run(main)


def test_rows_have_the_columns_of_a_delivered_batch():
    fields = RowFields("k1", [("a", "1")], 7, 1_900_000_000_000, 1_900_000_060_000, "id-1", b"\0")
    batch = PushedRows(object(), [row(4), row(5, 78, b"", fields)], acks=True)  # type: ignore[arg-type]
    first, second = batch.messages()
    assert (first.id, first.key, first.headers, first.priority) == ("0-4", None, {}, 32_768)
    assert (second.id, second.key, second.headers, second.priority) == ("id-1", "k1", {"a": "1"}, 7)
    assert (second.due_ms, second.published_ms, second.attempt) == (1_900_000_000_000, 1_800_000_000_000, 1)
    assert set(batch.data.schema.names) == set(DELIVERED.names) - {"blob", "mac"}
    assert batch.data.column("priority").to_pylist() == [32_768, 7]
    assert all(field.equals(DELIVERED.field(field.name)) for field in batch.data.schema)
    assert batch.leases() == [(77, []), (78, [])]
    plain = PushedRows(object(), [row(4)], acks=True)  # type: ignore[arg-type]
    assert set(plain.data.schema.names) == {"offset", "published", "payload", "partition", "attempt"}


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        (b"a", ([b"a"], None)),
        ("ä", ([b"\xc3\xa4"], None)),
        ([b"a", "b"], ([b"a", b"b"], None)),
        (wherry.Message(payload=b"a", key="k"), ([b"a"], [RowFields(key="k")])),
        ([b"a", wherry.Message(payload=b"b", id="x")], ([b"a", b"b"], [PLAIN, RowFields(id="x")])),
    ],
)
def test_few_messages_are_rows(given, rows):
    assert rows_of(given) == rows


@pytest.mark.parametrize(
    "given",
    [
        [],
        [b"a"] * 65,
        b"x" * 70_000,
        [b"x" * 40_000] * 2,
        7,
        [None],
        "\ud800",
        bytearray(b"a"),
        wherry.Message(payload="text"),  # type: ignore[arg-type]
        wherry.Message(payload=b"a", priority=70_000),
        wherry.Message(payload=b"a", id=7),  # type: ignore[arg-type]
        wherry.Message(payload=b"a", key="\ud800"),
    ],
)
def test_what_is_many_large_or_doubtful_is_no_row(given):
    assert rows_of(given) is None
