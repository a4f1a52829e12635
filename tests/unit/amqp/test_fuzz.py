"""Streams that were broken by chance: only events come out, faults among them, and the same ones in any chunking.

`make test-long` takes a million, or as many as `FUZZ_AMQP` sets, from the seed `FUZZ_AMQP_SEED` on. A failure has the
seed of its case.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.unit.amqp.goldens import METHODS, PROPERTIES, VALUES
from tests.unit.amqp.streams import comparable, fed, publish, raw_frame
from wherry.queueing.message import properties, table
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.faults import AmqpFault
from wherry.wire.amqp.codec.frames import HEADER
from wherry.wire.amqp.codec.methods import BasicPublish, decode_method, encode_method
from wherry.wire.amqp.codec.reader import CONTENT_BYTES, Event, FrameReader, IncomingMessages

COUNTS = (10_000, pytest.param(int(os.environ.get("FUZZ_AMQP", "1000000")), marks=pytest.mark.long))
SEED = int(os.environ.get("FUZZ_AMQP_SEED", "0"))

FRAME_MAX, BODY_MAX, CHANNEL_MAX = 4096, 3000, 8

PAYLOADS = [bytes.fromhex(payload) for _, payload in METHODS]
RAW_PROPERTIES = [raw for _, raw in PROPERTIES]
RAW_TABLES = [table.encode_table({"k": value, "l": [value]}) for value, _ in VALUES]

FRAMES = [
    *(writer.frame(0 if method.ids[0] == 10 else 1, method) for method, _ in METHODS),
    *(publish(bytes(size), channel, headers={"a": [1, {"b": None}]}) for size in (0, 1, 300) for channel in (1, 2)),
    *(publish(bytes(size), channel) for size in (1, 300) for channel in (1, 2)),
    publish(bytes(900), 3, frame_max=308),
    publish(bytes(4000), 4, frame_max=1000),
    writer.HEARTBEAT_FRAME,
]

PUBLISHES = [publish(bytes(size)) for size in (1, 5, 5, 5, 5, 300)]

PUBLISH = writer.frame(1, BasicPublish(exchange="e", routing_key="k"))

INTERESTING = b"\x00\x01\x02\x03\x08\x7f\x80\xce\xff" + b"tbBsuUIilLfdDSATFVx"


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few of them changed, inserted, removed, doubled or moved."""
    buffer = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        at = chance.randrange(len(buffer) + 1)
        what = chance.randrange(6)
        if what <= 2 and at < len(buffer):
            buffer[at] = chance.choice(INTERESTING) if what else chance.randrange(256)
        elif what == 3:
            buffer[at:at] = chance.randbytes(chance.randrange(1, 5))
        elif what == 4:
            del buffer[at : at + chance.randrange(1, 9)]
        else:
            other = chance.randrange(len(buffer) + 1)
            buffer[at:at] = buffer[other : other + chance.randrange(1, 40)]
    return bytes(buffer)


def stream(chance: random.Random) -> bytes:
    """Make a greeting and frames: sound ones, some with broken payloads, broken ones, runs, or noise."""
    parts = [HEADER if chance.random() < 0.98 else mutated(chance, HEADER)]
    for _ in range(chance.randrange(1, 6)):
        what = chance.randrange(7)
        if what <= 2:
            parts.append(chance.choice(FRAMES))
        elif what == 6:
            run = b"".join(chance.choices(PUBLISHES, k=chance.randrange(2, 9)))
            parts.append(run if chance.random() < 0.5 else mutated(chance, run))
        elif what == 3:
            payload = mutated(chance, chance.choice(PAYLOADS))
            parts.append(raw_frame(1, chance.choice((0, 1, 1, 2, 9)), payload))
        elif what == 4:
            raw = mutated(chance, chance.choice(RAW_PROPERTIES))
            size = chance.choice((0, 1, 5, 3001, 2**63))
            head = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + raw
            parts += [PUBLISH if chance.random() < 0.9 else b"", raw_frame(2, 1, head), raw_frame(3, 1, bytes(5))]
        else:
            parts.append(chance.randbytes(chance.randrange(30)))
    whole = b"".join(parts)
    return whole if chance.random() < 0.5 else HEADER + mutated(chance, whole[8:])


def chunks(chance: random.Random, data: bytes) -> list[bytes]:
    widest = chance.choice((1, 7, 40, 400))
    cut: list[bytes] = []
    while data:
        width = chance.randint(1, widest)
        cut.append(data[:width])
        data = data[width:]
    return cut


def new_reader() -> FrameReader:
    return FrameReader(FRAME_MAX, channel_max=CHANNEL_MAX, body_max=BODY_MAX)


def check_events(events: list[Event]) -> None:
    hard = [event for event in events if isinstance(event, AmqpFault) and event.hard]
    assert len(hard) <= 1
    for event in events:
        if isinstance(event, AmqpFault):
            assert len(event.text.encode("utf-8", "surrogateescape")) <= 255
        elif isinstance(event, IncomingMessages):
            assert 0 < event.channel <= CHANNEL_MAX
            assert event.bodies
            assert max(map(len, event.bodies)) <= BODY_MAX
            properties.decode(event.properties.raw)  # a consumer can read what the reader let through


@pytest.mark.parametrize("count", COUNTS)
def test_streams_broken_by_chance(count: int):
    for number in range(SEED, SEED + count):
        chance = random.Random(number)
        data = stream(chance)
        try:
            whole = new_reader()
            events = whole.feed(data)
            assert whole.partial_bytes <= FRAME_MAX + 8 + CHANNEL_MAX * (BODY_MAX + FRAME_MAX + CONTENT_BYTES)
            check_events(events)
            if number % 4 == 0:
                cut = new_reader()
                assert comparable(fed(cut, chunks(chance, data))) == comparable(events)
                assert cut.partial_bytes == whole.partial_bytes
        except BaseException as error:
            error.add_note(f"FUZZ_AMQP_SEED={number} FUZZ_AMQP=1")
            raise


READERS: list[tuple[list[bytes], Callable[[bytes], object]]] = [
    (PAYLOADS, lambda data: encode_method(decode_method(data))),
    (RAW_TABLES, lambda data: table.encode_table(table.decode_table(data))),
    (RAW_TABLES, lambda data: table.check_table(data, 0, len(data))),
    (RAW_TABLES, lambda data: table.with_entries(table.without(data, ["k"]), {"l": 1})),
    (RAW_PROPERTIES, properties.used_properties),
    (RAW_PROPERTIES, lambda data: properties.encode(properties.decode(data))),
    (RAW_PROPERTIES, lambda data: properties.replaced(data, "headers", {"k": 1})),
]


@pytest.mark.parametrize("count", COUNTS)
def test_payloads_broken_by_chance(count: int):
    for number in range(SEED, SEED + count):
        chance = random.Random(number)
        good, read = chance.choice(READERS)
        data = mutated(chance, chance.choice(good)) if chance.random() < 0.9 else chance.randbytes(40)
        try:
            read(data)
        except table.Malformed:
            pass
        except AmqpFault as fault:
            assert fault.hard
        except BaseException as error:
            error.add_note(f"FUZZ_AMQP_SEED={number} FUZZ_AMQP=1 {data!r}")
            raise


@pytest.mark.parametrize("count", COUNTS)
def test_checking_and_decoding_agree_on_what_a_table_is(count: int):
    for number in range(SEED, SEED + count // 4):
        chance = random.Random(number)
        data = mutated(chance, chance.choice(RAW_TABLES))
        outcomes = set()
        for read in (lambda raw: table.check_table(raw, 0, len(raw)) == len(raw), table.decode_table):
            try:
                outcomes.add(read(data) is not False)
            except table.Malformed:
                outcomes.add(False)
        assert len(outcomes) == 1 or not data, data
