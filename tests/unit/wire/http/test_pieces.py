"""Large bodies: read in pieces they are the same as read whole, no piece is long, and others run between."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from wherry.broker.waiting.slices import Slices
from wherry.model.errors import InvalidInput
from wherry.model.schema import compact
from wherry.wire.http import formats
from wherry.wire.http.formats import as_avro, as_json, pieces, read_messages, take_messages
from wherry.wire.http.protocol.message import (
    AVRO,
    JSON,
    NDJSON,
    Request,
)

TEXTS = ["", "a", '"', "\\", '\\"', "],[", "},{", "é😀", "\n", "{", '{"payload":"x"},{"payload":"y"}', "\\\\\\"]


def request(kind: str, body: bytes) -> Request:
    return Request("POST", "/", "", {"content-type": kind}, body)


def message(chance: random.Random) -> dict[str, Any]:
    text = lambda: "".join(chance.choices(TEXTS, k=chance.randrange(4)))  # noqa: E731
    made: dict[str, Any] = {"payload": chance.choice([text(), [text(), {"a": [{}, {text(): 1}]}], 7, None, {}])}
    if chance.random() < 0.3:
        made |= {"key": text(), "headers": {f"h{number}": text() for number in range(chance.randrange(3))}}
    if chance.random() < 0.1:
        made |= {"priority": chance.randrange(100), "due_ms": chance.randrange(1_000)}
    return made


def bodies(chance: random.Random) -> tuple[str, bytes]:
    messages = [message(chance) for _ in range(chance.choice([1, 2, 5, 40]))]
    ascii_only, indent = chance.random() < 0.5, chance.choice([None, None, 1])
    if chance.random() < 0.3:
        return NDJSON, b"".join(json.dumps(each, ensure_ascii=ascii_only).encode() + b"\n" for each in messages)
    return JSON, json.dumps(messages, ensure_ascii=ascii_only, indent=indent).encode()


def outcome(read: Any) -> Any:
    try:
        return compact(read())
    except InvalidInput as fault:
        return fault.field


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.more), 7, pytest.param(64, marks=pytest.mark.more)])
def test_pieces_read_the_same_as_the_whole(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(pieces, "SCAN_BYTES", size * 2)
    monkeypatch.setattr(as_json, "SCAN_BYTES", size * 2)
    monkeypatch.setattr(formats, "is_large", lambda body: True)
    for seed in range(60):
        chance = random.Random(seed)
        kind, body = bodies(chance)
        if chance.random() < 0.4:  # broken somewhere
            at = chance.randrange(len(body))
            body = body[:at] + chance.choice([b"", b",", b"]", b'"', b"\\", b"{", b"\xff"]) + body[at + 1 :]
        whole = outcome(lambda body=body, kind=kind: read_messages(request(kind, body)))
        parts = outcome(lambda body=body, kind=kind: asyncio.run(take_messages(request(kind, body), Slices())))
        same = whole == parts if isinstance(whole, str) or isinstance(parts, str) else whole.equals(parts)
        assert same, (seed, size, kind, body, whole, parts)


@pytest.mark.parametrize(
    "body", [b"[", b"[,]", b'[{"payload":""},]', b'[{"payload":""},,{"payload":""}]', b"[]", b"[]]"]
)
def test_a_body_that_is_no_list_is_none_in_pieces_either(body: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    monkeypatch.setattr(formats, "is_large", lambda body: True)
    with pytest.raises(InvalidInput):
        asyncio.run(take_messages(request(JSON, body), Slices()))


def test_a_fault_names_the_message_by_its_place_in_the_body():
    messages: list[dict[str, Any]] = [{"payload": "x" * 100} for _ in range(9_000)]
    messages[1_500]["priority"] = "high"
    with pytest.raises(InvalidInput) as fault:
        asyncio.run(take_messages(request(JSON, json.dumps(messages).encode()), Slices()))
    assert fault.value.field == "messages[1500].priority"


def container(messages: list[dict[str, Any]], interval: int) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, as_avro.MESSAGE_AVRO_SCHEMA, messages, sync_interval=interval)
    return sink.getvalue()


MANY = [{"payload": ""}] * 50_000
HEADERS = [{"payload": "x", "headers": {f"h{number}": "v" for number in range(100)}}] * 500
LARGE = [{"payload": "x" * 1_000_000}] * 3
SHOWN: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "a list": (JSON, lambda: json.dumps(MANY).encode(), 3_000),
    "headers": (JSON, lambda: json.dumps(HEADERS).encode(), 50),
    "lines": (NDJSON, lambda: (json.dumps(MANY[0]).encode() + b"\n") * len(MANY), 3_000),
    "small blocks": (AVRO, lambda: container([{"payload": b""}] * 50_000, 1_000), 3_000),
    "a large block": (AVRO, lambda: container([{"payload": b""}] * 50_000, 1 << 30), 3_000),
    "large messages": (JSON, lambda: json.dumps(LARGE).encode(), 1),
}
"""Bodies are made by the test: every worker imports this file."""


@pytest.mark.parametrize("name", SHOWN)
def test_no_more_is_read_between_two_turns_than_a_piece(name: str, monkeypatch: pytest.MonkeyPatch):
    kind, make, most = SHOWN[name]
    body = make()
    read: dict[int, int] = {}
    turns = 0

    for module in (as_json, as_avro):
        made = module.to_batch

        def to_batch(fields: Any, made: Any = made) -> Any:
            batch = made(fields)
            read[turns] = read.get(turns, 0) + batch.num_rows
            return batch

        monkeypatch.setattr(module, "to_batch", to_batch)

    async def main() -> int:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        rows = (await take_messages(request(kind, body), Slices())).num_rows
        counting.cancel()
        return int(rows)

    rows = asyncio.run(main())
    assert sum(read.values()) == rows
    assert max(read.values()) <= most


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: b'{"payload":"' + b"x" * (30 << 20) + b'"}', "messages[0].payload"),
        (
            lambda: json.dumps([{"payload": "", "headers": {f"h{n}": "v" for n in range(100_000)}}]).encode(),
            "messages[0].headers",
        ),
    ],
    ids=["payload", "headers"],
)
def test_what_no_message_may_have_is_refused_before_it_is_made(
    make: Callable[[], bytes], field: str, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: Any) -> Any:
        raise AssertionError("it was made")

    monkeypatch.setattr(as_json, "_read", never)
    with pytest.raises(InvalidInput) as fault:
        asyncio.run(take_messages(request(JSON, make()), Slices()))
    assert fault.value.field == field
