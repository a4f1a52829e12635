"""The codec of the C client: golden frames byte for byte, the same verdicts as Python's, and random bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.c.compiling import SANITIZED, TESTS, compiled, run
from tests.golden.wire_v1 import FILE, FRAMES
from wherry.wire.native.codec import calls, deliveries, publishes, settles
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import HEADER, HEADER_BYTES, Kind
from wherry.wire.native.codec.rows import DeliveredRow

GOLDEN = dict(line.split(" ") for line in FILE.read_text(encoding="utf-8").splitlines())
SENT = [name for name, frame in FRAMES.items() if frame.side == "client"]
"""Frames of a client, and two that both sides send."""

BINARY = ["confirm", "deliver-one", "deliver-rows", "settled", "answer"]


@pytest.fixture(scope="module")
def program() -> Path:
    return compiled("golden", [TESTS / "golden.c"], SANITIZED)


@pytest.mark.rows("Q17")
def test_the_frames_of_a_client_are_the_golden_ones_byte_for_byte(program):
    encoded = dict(line.split(" ") for line in run(program, "encode").splitlines())
    assert encoded == {name: GOLDEN[name] for name in encoded}
    assert set(SENT) <= set(encoded)


def row_text(row: DeliveredRow) -> str:
    parts = [
        f" row token={row.token} partition={row.partition} offset={row.offset} published={row.published_us} "
        f"attempt={row.attempt}"
    ]
    fields = row.fields
    if fields.key is not None:
        parts.append(f"key={fields.key.encode().hex()}")
    for name, value in fields.headers or []:
        parts += [f"name={name.encode().hex()}", f"value={value.encode().hex()}"]
    parts += [f"priority={fields.priority}"] * (fields.priority is not None)
    parts += [f"due={fields.due_ms}"] * (fields.due_ms is not None)
    parts += [f"expires={fields.expires_ms}"] * (fields.expires_ms is not None)
    if fields.id is not None:
        parts.append(f"id={fields.id.encode().hex()}")
    if fields.envelope is not None:
        parts.append(f"envelope={fields.envelope.hex()}")
    return " ".join([*parts, f"payload={row.payload.hex()}"])


def confirm_text(body: bytes) -> str:
    texts = []
    for first, requests, partition, offset, flags, dead, places in publishes.decode_confirm(body):
        texts.append(
            f" entry first={first} requests={requests} partition={partition} offset={offset} flags={flags} dead={dead}"
        )
        texts += [f" place partition={part} offset={start} messages={many}" for part, start, many in places]
    return "".join(texts)


def answer_text(body: bytes) -> str:
    head, rest = calls.decode_answer(body)
    return f" status={head.status} body={bytes(rest).hex()}"


def settled_text(body: bytes) -> str:
    return "".join(f" range first={first} requests={count}" for first, count in settles.decode_settled(body))


READERS: dict[int, Callable[[bytes], str]] = {
    Kind.CONFIRM: confirm_text,
    Kind.DELIVER: lambda body: "".join(map(row_text, deliveries.decode_deliver(body))),
    Kind.SETTLED: settled_text,
    Kind.ANSWER: answer_text,
}


def expected(data: bytes) -> str:
    """Return what the C program should print for a frame, by the codec of Python."""
    _, kind, flags, _, number = HEADER.unpack_from(data)
    try:
        return f" kind={kind} flags={flags} id={number}" + READERS[kind](data[HEADER_BYTES:])
    except WireFault:
        return "fault"


@pytest.mark.rows("Q17")
def test_the_frames_of_a_server_decode_to_the_golden_values(program):
    printed = dict(line.split(" ", 1) for line in run(program, "decode", text=FILE.read_text()).splitlines())
    for name in BINARY:
        assert f" {printed[name]}" == expected(bytes.fromhex(GOLDEN[name]))
    assert printed["hello-server"] == "kind=1 flags=0 id=0 version=1 heartbeat_ms=20000 name=wherry"
    assert printed["goodbye"] == "kind=4 flags=0 id=0 reason=the broker is closing"
    assert printed["error-of-a-stream"] == "kind=5 flags=4 id=1 code=not-found status=404 field= given= allowed="
    moved = "kind=6 flags=0 id=3 code=moved status=0 field=topic given=jobs allowed=https://b.example.org:7070"
    assert printed["moved"] == moved
    assert printed["subscribed"] == "kind=33 flags=0 id=1 consumer=ann lease_ms=30000"
    assert printed["deliver-arrow"] == f"kind=35 flags=1 id=1 arrow={b'an Arrow stream'.hex()}"
    assert {printed[name] for name in SENT if name not in ("hello-client", "ping") and "cancel" not in name} == {
        "fault=kind"
    }


def changed(chance: random.Random, body: bytearray) -> bytearray:
    """Change a body a little."""
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(4):
            case 0 if at < len(body):
                body[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(body):
                body[at] = chance.choice([0, 1, 0x7F, 0x80, 0xC3, 0xED, 0xFF])
            case 2:
                del body[at:]
            case _:
                body[at:at] = chance.randbytes(chance.randint(1, 9))
    return body


def head_is_no_text(frame: bytes) -> bool:
    """Return whether the head of an ANSWER is not UTF-8; msgspec does not look at the bytes of fields that it skips."""
    if frame[4] != Kind.ANSWER:
        return False
    size = int.from_bytes(frame[HEADER_BYTES : HEADER_BYTES + 4], "little")
    try:
        frame[HEADER_BYTES + 4 : HEADER_BYTES + 4 + size].decode()
    except UnicodeDecodeError:
        return True
    return False


@pytest.mark.parametrize("inputs", [4_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_both_codecs_read_the_same_from_frames_that_are_a_little_wrong(program, inputs):
    chance = random.Random(inputs)
    frames = []
    for _ in range(inputs):
        data = bytes.fromhex(GOLDEN[chance.choice(BINARY)])
        _, kind, flags, _, number = HEADER.unpack_from(data)
        body = bytes(changed(chance, bytearray(data[HEADER_BYTES:])))
        frames.append(HEADER.pack(len(body), kind, flags, 0, number) + body)
    lines = run(program, "decode", text="".join(f"x {frame.hex()}\n" for frame in frames)).splitlines()
    differ = []
    for frame, line in zip(frames, lines, strict=True):
        wanted = "fault" if head_is_no_text(frame) else expected(frame)
        is_same = "fault=" in line if wanted == "fault" else line == f"x{wanted}"
        if not is_same:
            differ.append((frame.hex(), line, wanted))
    assert differ == []
    assert any("fault=" in line for line in lines) and any("row token" in line for line in lines)


@pytest.mark.rows("Q17")
@pytest.mark.parametrize("inputs", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_no_bytes_of_a_server_harm_the_client(inputs):
    program = compiled("fuzz", [TESTS / "fuzz.c"], SANITIZED)
    printed = run(program, FILE, str(inputs), "1", patience_s=900).split()
    assert int(printed[0]) == inputs
    assert int(printed[2]) > 0
    assert int(printed[4]) > 0
