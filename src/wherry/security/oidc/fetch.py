"""One GET of a provider's document: bounded in time and size, without redirects, and never on behalf of a token."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

FETCH_S = 5.0
"""For a whole answer."""

DOCUMENT_BYTES_MAX = 512 << 10

_MAX_AGE = re.compile(rb"max-age=([0-9]{1,9})")


class FetchFailed(Exception):
    """The document could not be fetched; the text says why, and has nothing in it that the server sent."""


class Fetched(NamedTuple):
    """A document, and for how long it may be kept, if its server states it."""

    body: bytes
    max_age_s: float | None


class _Answer:
    """Collects what the parser reads."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.max_age_s: float | None = None
        self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"cache-control" and (found := _MAX_AGE.search(value)) is not None:
            self.max_age_s = float(found[1])

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.is_whole = True


async def fetch(url: str, tls: ssl.SSLContext | None = None, within_s: float = FETCH_S) -> Fetched:
    """Return the document at a URL, or raise `FetchFailed`. With https, the certificate is checked by `tls`."""
    try:
        async with asyncio.timeout(within_s):
            return await _fetch(url, tls)
    except TimeoutError:
        raise FetchFailed(f"no whole answer within {within_s:g} s") from None
    except ssl.SSLCertVerificationError as fault:
        raise FetchFailed(f"the certificate is not trusted: {fault.verify_message}") from None
    except (OSError, HttpParserError) as fault:
        raise FetchFailed(f"{type(fault).__name__}") from None


async def _fetch(url: str, tls: ssl.SSLContext | None) -> Fetched:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = (tls or ssl.create_default_context()) if secure else None
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii"))
        return await _read(reader)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Fetched:
    answer, taken = _Answer(), 0
    parser = HttpResponseParser(answer)
    while not answer.is_whole:
        data = await reader.read(64 << 10)
        if not data:
            raise FetchFailed("the answer broke off")
        taken += len(data)
        if taken > DOCUMENT_BYTES_MAX:
            raise FetchFailed(f"the answer has more than {DOCUMENT_BYTES_MAX} bytes")
        parser.feed_data(data)
    if parser.get_status_code() != 200:
        raise FetchFailed(f"the answer has status {parser.get_status_code()}")
    return Fetched(bytes(answer.body), answer.max_age_s)
