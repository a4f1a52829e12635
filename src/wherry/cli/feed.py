"""Messages from arguments, files and stdin, read one after another and never all at once."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from wherry.model.errors import InvalidInput

BLOCK_BYTES = 256 << 10
BLOCKS_AHEAD = 4

LINE_BYTES_MAX = 4 << 20
"""Room for the largest payload in base64, and its fields."""

STDIN = "-"


class InputMessage(NamedTuple):
    """One message as it was read: its body, and the fields that came with it."""

    payload: bytes
    fields: dict[str, Any]


_MISSING = msgspec.Raw()


class InputLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line of NDJSON, in the fields of docs/http.md."""

    payload: msgspec.Raw = _MISSING
    payload_base64: str | None = None
    id: str | None = None
    key: str | None = None
    priority: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    headers: dict[str, str] | None = None


_LINE = msgspec.json.Decoder(InputLine)
_FIELDS = ("id", "key", "priority", "due_ms", "expires_ms", "headers")


def read_line(line: bytes, place: str) -> InputMessage:
    """Parse a line of NDJSON as a message; `place` names the line in an error."""
    try:
        read = _LINE.decode(line)
        if (read.payload is _MISSING) == (read.payload_base64 is None):
            raise msgspec.ValidationError("one of payload and payload_base64 is needed")
        if read.payload_base64 is not None:
            payload = b64decode(read.payload_base64, validate=True)
        else:
            raw = bytes(read.payload)
            payload = (
                msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else msgspec.json.format(raw, indent=-1)
            )
    except (msgspec.MsgspecError, UnicodeError, NotBase64) as fault:
        raise InvalidInput(
            place, line[:80], f'a message such as {{"payload": "text", "key": "ann"}} ({fault})'
        ) from None
    return InputMessage(payload, {name: value for name in _FIELDS if (value := getattr(read, name)) is not None})


async def blocks(source: str, on_read: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Yield a file, or stdin, in blocks. A thread reads ahead, so that a slow source does not block the loop."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes | OSError]()
    room = threading.Semaphore(BLOCKS_AHEAD)

    def put(block: bytes | OSError) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, block)

    def read_ahead() -> None:
        with suppress(RuntimeError):  # the loop is closed
            try:
                with nullcontext(sys.stdin.buffer) if source == STDIN else Path(source).open("rb") as stream:
                    while room.acquire() and (block := _read(stream)):
                        put(block)
                put(b"")
            except OSError as fault:
                put(fault)

    threading.Thread(target=read_ahead, name="wherry feed", daemon=True).start()
    while block := await queue.get():
        if isinstance(block, OSError):
            raise block
        on_read(len(block))
        room.release()
        yield block


def _read(stream: BinaryIO) -> bytes:
    """Read what is available without waiting for a whole block, and without a lock that a daemon thread could keep."""
    try:
        number = stream.fileno()
    except OSError:
        return stream.read(BLOCK_BYTES)
    return os.read(number, BLOCK_BYTES)


async def lines(source: str, on_read: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Yield the lines of a file or stdin, without line ends and empty lines."""
    rest = b""
    async for block in blocks(source, on_read):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            text = line.removesuffix(b"\r")
            if text:
                yield text
        if len(rest) > LINE_BYTES_MAX:
            raise InvalidInput(
                f"a line of {source}", rest[:80], f"at most {LINE_BYTES_MAX} bytes; --whole takes it whole"
            )
    if rest:
        yield rest


async def whole(source: str, on_read: Callable[[int], None]) -> bytes:
    """Read all of a file or stdin, up to the size of a message."""
    parts: list[bytes] = []
    size = 0
    async for block in blocks(source, on_read):
        parts.append(block)
        size += len(block)
        if size > LINE_BYTES_MAX:
            raise InvalidInput(source, f"more than {size} bytes", "a body of at most 1 MiB")
    return b"".join(parts)


async def messages(
    texts: list[str], sources: list[str], on_read: Callable[[int], None], *, ndjson: bool, entire: bool
) -> AsyncIterator[InputMessage]:
    """Yield all messages in order: arguments, then files."""
    for text in texts:
        yield read_line(text.encode(), "argument") if ndjson else InputMessage(text.encode(), {})
    for source in sources:
        if entire:
            yield InputMessage(await whole(source, on_read), {})
            continue
        number = 0
        async for line in lines(source, on_read):
            number += 1
            yield read_line(line, f"{source} line {number}") if ndjson else InputMessage(line, {})
