"""One request to a provider: which answers count as whole, and that all others are the same fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import wherry
from wherry.model.errors import Unavailable
from wherry.security.oidc import fetch as module
from wherry.security.oidc.fetch import FetchFailed, Form, fetch

T = TypeVar("T")


async def answered(answer: bytes, ask: Callable[[str], Awaitable[T]]) -> T:
    """Return what `ask` makes of a server that gives this answer, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        return await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


WHOLE = {
    "with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "to the end of the connection": b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}",
}
BROKEN = {
    "101": b"HTTP/1.1 101 Switching\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\nx",
    "101 without an upgrade": b"HTTP/1.1 101 Switching\r\n\r\nx",
    "no head": b"HTTP/1.1 200 OK\r\n",
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "less than its length": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    "a chunk less": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "an error to the end of the connection": b"HTTP/1.0 500 No\r\n\r\n{}",
    "elsewhere": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer_is_taken(name):
    assert asyncio.run(answered(WHOLE[name], fetch)).body == b"{}"


@pytest.mark.parametrize("name", BROKEN)
def test_any_other_answer_is_a_fetch_that_failed(name):
    with pytest.raises(FetchFailed):
        asyncio.run(answered(BROKEN[name], fetch))


@pytest.mark.parametrize("name", BROKEN)
def test_a_source_of_tokens_raises_its_own_error_for_any_answer(name):
    with pytest.raises(Unavailable, match="identity provider"):
        asyncio.run(answered(BROKEN[name], lambda url: wherry.ClientCredentials(url, "shop", "secret").token()))


def test_a_form_does_not_show_its_secret():
    assert "c2VjcmV0" not in repr(Form("scope=a", "Basic c2VjcmV0"))


def test_what_the_system_trusts_is_read_once():
    assert module._system_trust() is module._system_trust()
