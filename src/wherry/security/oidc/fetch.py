"""One request to a provider: bounded in time and size, without redirects, and never to a URL that a token names."""

from __future__ import annotations

import asyncio
import re
import ssl
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

FETCH_S = 5.0
"""For a whole answer."""

DOCUMENT_BYTES_MAX = 512 << 10

_MAX_AGE = re.compile(rb"max-age=([0-9]{1,9})")


class FetchFailed(Exception):
    """The document could not be fetched; the text says why, and has nothing in it that the server sent."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status
        """The status of the answer, 0 if there was none."""


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
        self._is_headed = self._has_length = False

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body: its head came, and names no length."""
        return self._is_headed and not self._has_length

    def on_headers_complete(self) -> None:
        self._is_headed = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")
        if name.lower() == b"cache-control" and (found := _MAX_AGE.search(value)) is not None:
            self.max_age_s = float(found[1])

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.is_whole = True


class Form(NamedTuple):
    """What a POST sends: fields as `application/x-www-form-urlencoded`, and an `Authorization`."""

    fields: str
    authorization: str

    def __repr__(self) -> str:
        return "Form(…)"  # neither the secret of a client nor what it asks for is for a log


@cache
def _system_trust() -> ssl.SSLContext:
    """Return what the system trusts, read once: that takes long, and would hold up the event loop at each fetch."""
    return ssl.create_default_context()


async def fetch(
    url: str, tls: ssl.SSLContext | None = None, within_s: float = FETCH_S, form: Form | None = None
) -> Fetched:
    """Return the answer to a GET, or to the POST of a form; raise `FetchFailed` unless its status is 200.

    With https, the certificate is checked by `tls`.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _fetch(url, tls, form)
    except TimeoutError:
        raise FetchFailed(f"no whole answer within {within_s:g} s") from None
    except ssl.SSLCertVerificationError as fault:
        raise FetchFailed(f"the certificate is not trusted: {fault.verify_message}") from None
    except (OSError, HttpParserError, HttpParserUpgrade, ValueError) as fault:
        raise FetchFailed(f"{type(fault).__name__}") from None


async def _fetch(url: str, tls: ssl.SSLContext | None, form: Form | None) -> Fetched:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = (tls or _system_trust()) if secure else None
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        method = "GET" if form is None else "POST"
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Accept: application/json"]
        if form is not None:
            lines += [f"Authorization: {form.authorization}", f"Content-Length: {len(form.fields)}"]
            lines.append("Content-Type: application/x-www-form-urlencoded")
        body = "" if form is None else form.fields
        writer.write("\r\n".join([*lines, "Connection: close", "", body]).encode("ascii"))
        return await _read(reader)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Fetched:
    answer, taken = _Answer(), 0
    parser = HttpResponseParser(answer)
    while not answer.is_whole:
        data = await reader.read(64 << 10)
        if not data:
            if answer.ends_with_connection:
                break
            raise FetchFailed("the answer broke off")
        taken += len(data)
        if taken > DOCUMENT_BYTES_MAX:
            raise FetchFailed(f"the answer has more than {DOCUMENT_BYTES_MAX} bytes")
        parser.feed_data(data)
    status = parser.get_status_code()
    if status != 200:
        raise FetchFailed(f"the answer has status {status}", status)
    return Fetched(bytes(answer.body), answer.max_age_s)
