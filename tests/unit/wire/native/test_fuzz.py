"""Bytes that no sound client or server sends: faults of the protocol come of them, and nothing else does.

Each input is made from a number, which names it when it fails: `tried(42)` repeats it.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from tests.unit.wire.native.memory_session import MemoryClient, NativeWorld, in_memory
from tests.unit.wire.native.mutants import GREETING, changed, mutant, odd_frame
from wherry.wire.native.codec import calls, deliveries, documents, publishes, settles
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
from wherry.wire.native.codec.reader import FrameReader

TAIL = encode_frame(Kind.PING, 3)
PING = (Kind.PING, 0, 3, b"")

DOCUMENTS: dict[tuple[str, int], Any] = {
    ("client", Kind.HELLO): documents.ClientHello,
    ("client", Kind.GOODBYE): documents.GoodbyeDocument,
    ("client", Kind.SUBSCRIBE): documents.SubscribeTerms,
    ("server", Kind.HELLO): documents.ServerHello,
    ("server", Kind.GOODBYE): documents.GoodbyeDocument,
    ("server", Kind.ERROR): documents.ProblemDocument,
    ("server", Kind.MOVED): documents.MovedDocument,
    ("server", Kind.SUBSCRIBED): documents.StreamTerms,
}


def decode(side: Any, kind: int, flags: int, body: bytes) -> object:
    """Decode the body of any frame, with its options, as a session or a client does."""
    if (side, kind) in DOCUMENTS:
        return documents.decode_document(side, DOCUMENTS[side, kind], body)
    if kind == Kind.PUBLISH:
        request = publishes.decode_publish(flags, body)
        terms = documents.decode_document(side, publishes.PublishTerms, request.options or b"{}", "options")
        return request, terms
    if kind == Kind.SETTLE:
        settle = settles.decode_settle(body)
        return settle, documents.decode_document(side, settles.SettleTerms, settle.options or b"{}", "options")
    plain: dict[int, Any] = {
        Kind.CONFIRM: publishes.decode_confirm,
        Kind.CREDIT: deliveries.decode_credit,
        Kind.SETTLED: settles.decode_settled,
        Kind.RENEW: settles.decode_renew,
        Kind.CALL: calls.decode_call,
        Kind.ANSWER: calls.decode_answer,
    }
    if not flags & Flag.ARROW:
        plain[Kind.DELIVER] = deliveries.decode_deliver
    return plain[kind](body) if kind in plain else None


def outcome(side: Any, pieces: list[bytes]) -> tuple[list[object], FrameReader]:
    """Return what comes of bytes that arrive in these pieces: frames, and the faults of their bodies."""
    reader, found = FrameReader(side), list[object]()
    for piece in pieces:
        for frame in reader.feed(piece):
            try:
                decode(side, frame[0], frame[1], frame[3])
            except WireFault as fault:
                assert fault.side == side
                assert fault.field
                found.append((frame, str(fault)))
            else:
                found.append(frame)
    return found, reader


def tried(number: int) -> None:
    """Feed one input whole, byte by byte, in pieces and with a tail: each time the same comes of it."""
    chance = Random(number)
    side, data = mutant(chance)
    whole, reader = outcome(side, [data])
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(3))
    in_pieces = [data[low:high] for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for pieces in ([data[at : at + 1] for at in range(len(data))], in_pieces):
        found, other = outcome(side, pieces)
        assert found == whole
        assert (str(other.fault), other.partial_bytes) == (str(reader.fault), reader.partial_bytes)
    with_tail, behind = outcome(side, [data + TAIL])
    assert with_tail[: len(whole)] == whole, "what came before counts, whatever comes behind it"
    if reader.fault is not None:
        assert (with_tail, str(behind.fault)) == (whole, str(reader.fault))
    elif not reader.partial_bytes:
        assert with_tail == [*whole, PING]


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("inputs", [5_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_only_faults_of_the_protocol_come_of_odd_bytes(inputs):
    for number in range(inputs):
        try:
            tried(number)
        except BaseException as fault:
            fault.add_note(f"input {number}")
            raise


# ---------------------------------------------------------------------------------------------------------- a session


class OddClient(MemoryClient):
    """It does not know what it sent."""

    def _confirm(self, entry: publishes.ConfirmEntry) -> None:
        """Count nothing."""


async def one_session(world: NativeWorld, number: int) -> bool:
    """Send odd frames over a connection; return whether it is still open."""
    chance = Random(f"session {number}")
    client = OddClient(world)
    token = max((lease.token for lease in world.broker.shard.state.leases.all()), default=77)
    odd = [odd_frame(chance, each, token) for each in range(1, chance.randrange(2, 30))]
    if chance.random() < 0.2:
        odd[-1] = changed(odd[-1], chance)
    client.step = chance.choice((0, 0, 1, 7, 100))
    client.write(GREETING + b"".join(odd))
    await world.settle_down()
    if not (client.is_closed or client.session.partial_bytes):
        client.write(TAIL)
        await client.until(lambda: client.is_closed or 3 in client.pongs)
    client.abort()
    await world.settle_down()
    return 3 in client.pongs


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize("sessions", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_session_survives_odd_frames_and_others_continue(sessions, caplog):
    """Send odd frames: the log has no fault of the broker, and what another client asks for is done."""

    @in_memory()
    async def run(world: NativeWorld):
        await world.broker.create_topic("ranked", order="priority", partitions=3)
        await world.broker.subscribe("ranked", "good")
        good = await world.client()
        stream = await good.subscribe("ranked", "good", credit=1 << 20)
        stayed = 0
        for number in range(sessions):
            stayed += await one_session(world, number)
            assert not [each for each in caplog.records if each.levelno >= logging.WARNING], f"session {number}"
            caplog.clear()
            if number % 10 == 0:
                await good.publish("ranked", b"good")
                while b"good" not in [row.payload for row in await good.next_rows(stream)]:
                    pass
        assert sessions // 2 < stayed < sessions
        assert list(world.sessions.open) == [good.session]
        assert not world.sessions.partial_bytes

    run()
