"""Heads of requests and answers: headers that are joined, targets that are split, lines that cannot be broken."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import httptools

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.message import Header

HEADERS_MAX = 512
"""Header lines of one request; 256 of them may be those of its message."""

ONCE = frozenset({"host", "content-length", "transfer-encoding", "content-type", "authorization", "idempotency-key"})
"""Headers that two readers would understand differently if they came twice."""


class Head:
    """One head of one request, taken apart by llhttp; `HttpError` for anything else."""

    __slots__ = ("_begun", "_whole", "method", "pairs", "url", "version")

    def __init__(self, raw: bytes) -> None:
        self.url = b""
        self.pairs: list[tuple[bytes, bytes]] = []
        self._begun, self._whole = 0, False
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # an offer that we do not take up
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
        self._begun += 1  # the parser saw an end of the head where we saw none: two readers, two requests


def joined(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request, names in lower case; what comes twice has a comma between."""
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
    """Path and query of a request target: `/path?query`, or an absolute URL as proxies send it."""
    if not url.startswith(b"/"):
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            raise HttpError("invalid-input", "the target of the request is not a path", close=True) from None
        return (parsed.path or b"/").decode("latin-1"), (parsed.query or b"").decode("latin-1")
    path, _, query = url.partition(b"?")
    return path.decode("latin-1"), query.decode("latin-1")


def clean(value: str) -> str:
    """A header value that cannot end its line."""
    return value.replace("\r", " ").replace("\n", " ").replace("\0", " ")


@lru_cache(maxsize=128)
def status_line(status: int) -> str:
    """The first line of an answer, and who answers."""
    return f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}\r\nServer: wherry\r\n"


def written(status: int, date: str, content_type: str, headers: Iterable[Header], more: Iterable[str]) -> bytes:
    """The head of an answer; `date` and `more` are whole lines."""
    lines = [status_line(status), date]
    if content_type:
        lines.append(f"Content-Type: {content_type}\r\n")
    lines += [f"{name}: {clean(value)}\r\n" for name, value in headers]
    return "".join([*lines, *more, "\r\n"]).encode("latin-1", "replace")


def date_line(wall_s: float) -> str:
    """The `Date` header, which an origin server with a clock sends."""
    return f"Date: {formatdate(wall_s, usegmt=True)}\r\n"
