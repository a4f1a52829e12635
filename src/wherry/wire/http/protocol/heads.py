"""Heads of requests and answers: join headers, split targets, write lines that no value can break."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import httptools

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.message import Header

HEADERS_MAX = 512
"""Most header lines of one request; 256 of them may be headers of its message."""

ONCE = frozenset({"host", "content-length", "transfer-encoding", "content-type", "authorization", "idempotency-key"})
"""Headers that two readers would understand differently if they came twice."""


class Head:
    """One head of one request, parsed by llhttp; `HttpError` for anything else."""

    __slots__ = ("_begun", "_whole", "method", "pairs", "url", "version")

    def __init__(self, raw: bytes) -> None:
        self.url = b""
        self.pairs: list[tuple[bytes, bytes]] = []
        self._begun, self._whole = 0, False
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # the broker does not accept the upgrade that the client offers
        except httptools.HttpParserError as fault:
            raise HttpError("invalid-input", f"this is not a request in HTTP/1.1: {fault}", close=True) from None
        if self._begun != 1 or not self._whole:
            raise HttpError("invalid-input", "this is not one head of one request", close=True)
        self.version: str = parser.get_http_version()
        self.method: str = parser.get_method().decode("ascii")

    def on_message_begin(self) -> None:
        self._begun += 1

    def on_headers_complete(self) -> None:
        self._whole = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name, value))

    def on_body(self, chunk: bytes) -> None:
        # the parser found the end of the head elsewhere: the bytes could be read as two different requests
        self._begun += 1


def joined(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request by name in lower case; values of a repeated header are joined by a comma."""
    if len(pairs) > HEADERS_MAX:
        raise HttpError("headers-too-large", f"a request may have {HEADERS_MAX} headers", close=True)
    headers: dict[str, str] = {}
    for raw, value in pairs:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        if name in headers:
            if name in ONCE:
                raise HttpError("invalid-input", f"the header {name} comes twice", close=True)
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def split(url: bytes) -> tuple[str, str]:
    """Return path and query of a request target: `/path?query`, or an absolute URL as proxies send it."""
    if not url.startswith(b"/"):
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            raise HttpError("invalid-input", "the target of the request is not a path", close=True) from None
        return (parsed.path or b"/").decode("latin-1"), (parsed.query or b"").decode("latin-1")
    path, _, query = url.partition(b"?")
    return path.decode("latin-1"), query.decode("latin-1")


def clean(value: str) -> str:
    """Return a header value without characters that would end its line."""
    return value.replace("\r", " ").replace("\n", " ").replace("\0", " ")


@lru_cache(maxsize=128)
def status_line(status: int) -> str:
    """Return the status line of an answer, and the `Server` header."""
    return f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}\r\nServer: wherry\r\n"


def written(status: int, date: str, content_type: str, headers: Iterable[Header], more: Iterable[str]) -> bytes:
    """Return the head of an answer; `date` and `more` are whole lines."""
    lines = [status_line(status), date]
    if content_type:
        lines.append(f"Content-Type: {content_type}\r\n")
    lines += [f"{name}: {clean(value)}\r\n" for name, value in headers]
    return "".join([*lines, *more, "\r\n"]).encode("latin-1", "replace")


def date_line(wall_s: float) -> str:
    """Return the `Date` header, which an origin server with a clock sends."""
    return f"Date: {formatdate(wall_s, usegmt=True)}\r\n"
