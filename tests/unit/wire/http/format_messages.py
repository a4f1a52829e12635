"""Messages for the tests of formats: hypothesis makes them, each format carries them there and back."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from wherry.model import limits
from wherry.model.schema import DELIVERED, Message, compact, expand
from wherry.wire.http.formats import MESSAGE_AVRO_SCHEMA
from wherry.wire.http.protocol.message import Request, Response

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
times = st.none() | st.integers(0, limits.TIME_MS_MAX)
payloads = st.binary(max_size=40) | texts.map(str.encode)
names = st.text("abcdefghijklmnopqrstuvwxyz-%é ", min_size=1, max_size=6)


def messages(payload: st.SearchStrategy[bytes] = payloads) -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        payload=payload,
        id=st.none() | texts.filter(bool),
        key=st.none() | texts,
        priority=st.none() | st.integers(0, limits.PRIORITY_MAX),
        due_ms=times,
        expires_ms=times,
        headers=st.none() | st.dictionaries(names, texts, max_size=3),
    )


lists = st.lists(messages(), min_size=1, max_size=8)

FIELDS = ("id", "key", "priority", "due_ms", "expires_ms", "headers")


def record(message: Message) -> dict[str, Any]:
    return {"payload": message.payload} | {name: getattr(message, name) for name in FIELDS}


def json_value(message: Message) -> dict[str, Any]:
    """Return a message as a producer writes it, null or absent for what is not given."""
    value = {name: each for name, each in record(message).items() if each is not None or name == "key"}
    try:
        value["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        value["payload_base64"] = value.pop("payload")
    return value


def arrow_bytes(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def avro_bytes(given: list[Message], codec: str = "null", interval: int = 16_000) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, MESSAGE_AVRO_SCHEMA, map(record, given), codec=codec, sync_interval=interval)
    return sink.getvalue()


def json_bytes(value: object) -> bytes:
    return msgspec.json.encode(value)


def request(kind: str, body: Any, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("POST", "/", "", ({"content-type": kind} if kind else {}) | named, body)


def body_of(response: Response) -> bytes:
    return b"".join(bytes(memoryview(part)) for part in response.body)


def delivered(given: list[Message], first: int = 1041, partition: int = 3) -> pa.RecordBatch:
    full = expand(compact(given), np.arange(len(given)) + first, 1_700_000_000_123_456)
    numbers = pa.array(np.full(len(given), partition, np.uint16))
    return pa.RecordBatch.from_arrays(
        [*full.columns, numbers, pa.array(np.ones(len(given), np.uint16))], DELIVERED.names
    )


def leases(count: int) -> Any:
    return np.full(count, 1 << 40, np.int64)
