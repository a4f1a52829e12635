"""Frames with bytes changed, left out or put in between, and documents with values that no client means."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa

from tests.golden.wire_v1 import FRAMES
from wherry.wire.native.codec import calls, documents, publishes, settles
from wherry.wire.native.codec.frames import HEADER, Flag, Kind, encode_frame
from wherry.wire.native.codec.rows import RowFields

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, 1 << 64, 10**400),
    *(0.5, 1e300, "", "jobs", "workers", "x" * 300, "\x00", "ü/%", "http://[", [], [[]], {}, {"lease_ms": -1}),
)
"""Values of a field, most of them wrong for most fields."""

OPTIONS = {
    "publish": ("persistent", "partition", "producer", "sequence", "fingerprint", "callback"),
    "settle": ("delay_ms", "error", "reason"),
    "subscribe": ("topic", "subscription", "consumer", "credit", "buffer_messages", "buffer_bytes", "create"),
    "hello": ("versions", "name", "features", "heartbeat_ms", "frame_bytes_max"),
}
PATHS = (
    *("/v1/topics/jobs", "/v1/topics/jobs/messages", "/v1/topics/jobs/subscriptions/workers/pull", "/healthz"),
    *("/v1/topics/jobs/subscriptions/workers/ack", "/v1/topics/%ff", "", "//", "/v1/topics?limit=x", "/v1/figures"),
)


def changed(data: bytes, chance: Random) -> bytes:
    """Return bytes with a few changes; sometimes other ones altogether."""
    found = bytearray(data if chance.random() < 0.95 else chance.randbytes(chance.randrange(1, 60)))
    for _ in range(chance.randrange(1, 5)):
        at, how = chance.randrange(len(found) + 1), chance.random()
        if how < 0.5:
            found[at : at + 1] = bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))])
        elif how < 0.7:
            del found[at:]
        elif how < 0.9:
            found[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            found[0:4] = max(0, len(found) - HEADER.size).to_bytes(4, "little")
    return bytes(found)


def mutant(chance: Random) -> tuple[Any, bytes]:
    """Return bytes of a side, from a golden frame: the frame as a whole is changed, or its body alone."""
    frame = chance.choice(_FRAMES)
    if chance.random() < 0.5:
        return frame.side, changed(frame.data, chance)
    kind, flags, number = frame.header
    return frame.side, encode_frame(Kind(kind), number, changed(frame.data[HEADER.size :], chance), flags)


_FRAMES = list(FRAMES.values())


def document(what: str, chance: Random, **given: Any) -> bytes:
    """Return a document in which some fields have odd values."""
    odd = {name: chance.choice(ODD) for name in OPTIONS[what] if chance.random() < 0.1}
    return json.dumps({**given, **odd}).encode()


def odd_frame(chance: Random, number: int, token: int) -> bytes:
    """Return a frame of a client whose header is sound, and whose body hardly is."""
    stream = chance.randrange(1, 4)
    make = chance.choice(
        (
            lambda: _subscribe(chance, stream),
            lambda: encode_frame(Kind.CREDIT, stream, chance.choice((1, 5, 0, 0xFFFFFFFF)).to_bytes(4, "little")),
            lambda: encode_frame(Kind.CANCEL, chance.choice((number, stream)), b"", chance.choice((0, Flag.STREAM))),
            lambda: _settle(chance, number, stream, token),
            lambda: settles.encode_renew(
                number, stream, [chance.choice((token, 7))], chance.choice((None, 1, 2**32 - 1))
            ),
            lambda: _call(chance, number),
            lambda: encode_frame(chance.choice((Kind.PING, Kind.PONG)), chance.randrange(2**32)),
            lambda: _publish(chance, number),
            lambda: _publish(chance, number),
        )
    )
    return make()


def _subscribe(chance: Random, stream: int) -> bytes:
    return encode_frame(Kind.SUBSCRIBE, stream, document("subscribe", chance, topic="jobs", subscription="workers"))


def _publish(chance: Random, number: int) -> bytes:
    topic = chance.choice(("jobs", "jobs", "jobs", "ranked", "nowhere", "", "x" * 300, "\x00"))
    options = document("publish", chance) if chance.random() < 0.3 else b""
    quiet = chance.random() < 0.2
    if chance.random() < 0.2:
        stream = changed(_STREAM, chance) if chance.random() < 0.8 else _STREAM
        if stream:
            return b"".join(map(bytes, publishes.encode_publish_arrow(number, topic, [stream], options, quiet=quiet)))
    fields = [_fields(chance) for _ in range(chance.randrange(1, 4))] if chance.random() < 0.5 else None
    payloads = [chance.randbytes(chance.randrange(30)) for _ in fields or (1, 2)]
    frame = publishes.encode_publish(number, topic, payloads, fields, options, quiet=quiet)
    if chance.random() < 0.8:
        return frame
    return encode_frame(Kind.PUBLISH, number, changed(frame[HEADER.size :], chance), Flag.QUIET if quiet else 0)


def _fields(chance: Random) -> RowFields:
    times = (None, None, 0, -1, 1, 1_800_000_000_000, 2**63 - 1, -(2**63))
    return RowFields(
        chance.choice((None, "", "k", "k" * 2_000, "\x00")),
        chance.choice((None, [], [("a", "1"), ("a", "2")], [("", "x" * 9_000)])),
        chance.choice((None, 0, 65_535)),
        chance.choice(times),
        chance.choice(times),
        chance.choice((None, "", "id", "0-1", "ü", "i" * 300)),
        chance.choice((None, b"", b"\xff" * 100)),
    )


def _settle(chance: Random, number: int, stream: int, token: int) -> bytes:
    ranges = [
        (chance.choice((0, 1, 2, 5, 2**43 - 10)), chance.choice((1, 1, 2, 9))) for _ in range(chance.randrange(4))
    ]
    parts = [(chance.choice((token, token, token + 1, 2**63 - 1)), ranges)] * chance.randrange(1, 3)
    options = document("settle", chance) if chance.random() < 0.4 else b""
    frame = settles.encode_settle(number, stream, chance.randrange(1, 5), parts, options)
    if chance.random() < 0.8:
        return frame
    return encode_frame(Kind.SETTLE, number, changed(frame[HEADER.size :], chance))


def _call(chance: Random, number: int) -> bytes:
    head = calls.CallHead(
        chance.choice(("GET", "PUT", "POST", "PATCH", "get", "")),
        chance.choice(PATHS),
        chance.choice(({}, {"content-type": "application/json"}, {"accept": "\x00"}, {"content-length": "-1"})),
    )
    body = chance.choice((b"", b"{}", b"{", b"x" * 100, b'{"messages":[{"payload":1}]}', json.dumps(ODD).encode()))
    frame = b"".join(map(bytes, calls.encode_call(number, head, [body])))
    if chance.random() < 0.8:
        return frame
    return encode_frame(Kind.CALL, number, changed(frame[HEADER.size :], chance))


def _arrow() -> bytes:
    batch = pa.record_batch(
        {"payload": pa.array([b"a", b"bc"]), "key": ["k", None], "priority": pa.array([1, 2], "u2")}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


_STREAM = _arrow()
GREETING = documents.encode_hello(documents.ClientHello(features=("arrow",)))
