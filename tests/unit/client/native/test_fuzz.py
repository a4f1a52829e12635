"""A server that sends odd frames: the client leaves it or continues, and every call ends in an answer or an error."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import wherry
from tests.golden.wire_v1 import FRAMES
from tests.unit.client.native.peer import Peer, turn
from tests.unit.wire.native.mutants import ODD, changed
from wherry.client.batch import Batch
from wherry.client.frames import encode
from wherry.client.link.transport import ClientRequest
from wherry.client.native.stream import NEEDED, ClientStream
from wherry.client.requests import Caller, SubscriptionRequests
from wherry.wire.native.codec import deliveries, documents, publishes, settles
from wherry.wire.native.codec.documents import SubscribeTerms
from wherry.wire.native.codec.frames import HEADER, Flag, Kind, encode_frame
from wherry.wire.native.codec.publishes import ConfirmEntry
from wherry.wire.native.codec.rows import DeliveredRow

SOUND = [frame for frame in FRAMES.values() if frame.side == "server"]
JSON: dict[Kind, dict[str, Any]] = {
    Kind.HELLO: {"version": 1, "heartbeat_ms": 1_000, "limits": {}},
    Kind.ERROR: {"code": "not-found", "detail": "no", "status": 404},
    Kind.MOVED: {"topic": "jobs", "url": "http://b:7070"},
    Kind.SUBSCRIBED: {"consumer": "c", "lease_ms": 1_000, "acks": True},
    Kind.GOODBYE: {"reason": ""},
}
COLUMNS = {name: pa.array([1, 2], pa.int64()) for name in sorted(NEEDED - {"payload"})}
ARROW = b"".join(map(bytes, encode(pa.record_batch({**COLUMNS, "payload": pa.array([b"a", b"b"])}))))
LARGE = (*(1,) * 6, 0, 2, 3, 2**31, 2**32 - 1)


def odd_frame(chance: Random) -> bytes:
    """Return a frame of a server whose header is sound, and whose body hardly is."""
    number, choice = chance.choice((1, 1, 2, 3, 4, 9)), chance.randrange(8)
    if choice == 0:
        frame = chance.choice(SOUND)
        return encode_frame(Kind(frame.header[0]), frame.header[2], changed(frame.data[HEADER.size :], chance))
    if choice == 1:
        kind = chance.choice(list(JSON))
        document = {name: chance.choice((*(value,) * 40, *ODD)) for name, value in JSON[kind].items()}
        flags = chance.choice((0, Flag.STREAM)) if kind in (Kind.ERROR, Kind.MOVED) else 0
        return encode_frame(
            kind, number * (kind not in (Kind.HELLO, Kind.GOODBYE)), json.dumps(document).encode(), flags
        )
    if choice == 2:
        return settles.encode_settled([(number, chance.choice(LARGE))])
    if choice == 3:
        return encode_frame(Kind.CANCEL, number, b"", chance.choice((0, Flag.STREAM)))
    if choice in (4, 5):
        return _deliver(chance, number)
    return _confirm(chance, number)


def _confirm(chance: Random, number: int) -> bytes:
    offset = chance.choice((0, 1, 2, 7, 2**43 - 1, 2**43, 2**63, 2**64 - 1))
    places = ((0, offset, 1), (1, 3, chance.choice(LARGE))) if chance.random() < 0.3 else ()
    flags = chance.choice((0, 1, 3, 0xFFF8))
    requests = chance.choice((1, 1, 2, *LARGE))
    entry = ConfirmEntry(number, requests, chance.choice((0, 0xFFFF)), offset, flags, chance.choice(LARGE), places)
    return publishes.encode_confirm([entry] * chance.randrange(1, 3))


def _deliver(chance: Random, number: int) -> bytes:
    if chance.random() < 0.2:
        stream = chance.choice(
            (b"", chance.randbytes(40), ARROW, ARROW[:50], ARROW[:-9], ARROW.replace(b"lease", b"loose"))
        )
        return encode_frame(Kind.DELIVER, number, stream, Flag.ARROW)
    rows = [
        DeliveredRow(
            *(chance.choice((77, 0, 2**63 - 1)), chance.randrange(2), chance.choice((0, 5, 2**43, 2**63 - 1))),
            *(chance.choice((0, 2**62)), chance.choice((1, 65_535)), b"hi"),
        )
        for _ in range(chance.choice((1, 2, 40)))
    ]
    return deliveries.encode_deliver(number, rows)


class Client:
    """Calls under way on a session, and a stream."""

    def __init__(self) -> None:
        self.peer = Peer()
        session = self.peer.session
        self.waiting: list[asyncio.Future[Any]] = [session.publish("jobs", [b"a"] * each, None, b"") for each in (1, 3)]
        self.waiting += [asyncio.ensure_future(session.call(ClientRequest("GET", "/v1/topics")))]
        requests = SubscriptionRequests(Caller(self), "jobs", "workers")  # type: ignore[arg-type]
        self.stream = ClientStream(session, requests, self._take)
        self.stream.subscribe(SubscribeTerms(topic="jobs", subscription="workers", credit=30))
        self.taken: list[Batch] = []

    def _take(self, batch: Batch, size: int) -> None:
        self.taken.append(batch)
        batch.payloads()
        if self.stream._acks and len(self.waiting) < 10 and batch.count < 3:
            self.waiting += [self.stream.ack(message) for message in batch.messages()]

    async def end(self) -> None:
        """Close what is left, and check that everything has ended."""
        if not self.peer.session.is_closed:
            self.peer.session.abort()
        self.peer.session.connection_lost(None)
        await turn()
        for each in self.waiting:
            assert each.done()
            assert isinstance(each.exception(), wherry.WherryError | None)
        assert self.stream.ended.done()


async def one_server(number: int) -> bool:
    """Let a server send odd frames; return whether the client has left it."""
    chance = Random(f"server {number}")
    client = Client()
    await turn()
    if chance.random() < 0.7:
        client.peer.subscribed(client.stream, acks=chance.random() < 0.8)
    frames = [odd_frame(chance) for _ in range(chance.randrange(1, 8))]
    if chance.random() < 0.2:
        frames[-1] = changed(frames[-1], chance)
    data = b"".join(frames)
    step = chance.choice((len(data), 1, 7)) or 1
    for at in range(0, len(data), step):
        client.peer.send(data[at : at + step])
    await turn()
    has_left = client.peer.is_cut
    await client.end()
    return has_left


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("servers", [500, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_client_survives_a_server_that_sends_odd_frames(servers):
    async def main() -> int:
        left = 0
        for number in range(servers):
            try:
                left += await one_server(number)
            except BaseException as fault:
                fault.add_note(f"server {number}")
                raise
        return left

    assert servers // 4 < asyncio.run(main()) < servers


def test_documents_of_a_server_are_read_as_they_are_written():
    """Check that the frames which the inputs begin with are sound: a decoder of its own reads each."""
    for kind, document in JSON.items():
        found = documents.decode_document("server", _KINDS[kind], json.dumps(document).encode())
        assert {name: getattr(found, name) for name in document} == document


_KINDS: dict[Kind, Any] = {
    Kind.HELLO: documents.ServerHello,
    Kind.ERROR: documents.ProblemDocument,
    Kind.MOVED: documents.MovedDocument,
    Kind.SUBSCRIBED: documents.StreamTerms,
    Kind.GOODBYE: documents.GoodbyeDocument,
}
