"""Opens a connection and asks for the native wire; the answer is 101, or that of a server or proxy which refuses."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import cast

from wherry.client.link.address import CONNECT_S, Address, dial
from wherry.client.link.transport import ClientResponse
from wherry.model.errors import Unavailable
from wherry.wire.native.codec.frames import PATH, PROTOCOL

ANSWER_BYTES_MAX = 64 << 10
"""Of an answer that is not 101; more is not read, since its status is enough."""

SWITCHED = 101


class UpgradeAnswer(asyncio.Protocol):
    """Reads the answer to the upgrade. `answer` is None if the server closed without one, or sent no HTTP/1.

    The first frames may arrive before the session takes over the connection: they are added to the body of a 101.
    """

    def __init__(self, protocol: str = PROTOCOL) -> None:
        self._got, self._protocol = b"", protocol
        self.answer: asyncio.Future[ClientResponse | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            self._add(data)
            return
        self._got += data
        head, end, rest = self._got.partition(b"\r\n\r\n")
        if end:
            self._read(head, rest)
        elif len(self._got) > ANSWER_BYTES_MAX or not b"HTTP/1.".startswith(self._got[:7]):
            self._done(None)

    def connection_lost(self, fault: Exception | None) -> None:
        head, end, rest = self._got.partition(b"\r\n\r\n")
        self._done(_answer(head, rest, self._protocol) if end else None)

    def _add(self, data: bytes) -> None:
        if self.answer.cancelled():  # the caller has given up, and closes the connection
            return
        answer = self.answer.result()
        if answer is not None and answer.status == SWITCHED:
            answer.body = bytes(answer.body) + data

    def _read(self, head: bytes, rest: bytes) -> None:
        answer = _answer(head, rest, self._protocol)
        length = _headers(head).get(b"content-length", b"0")
        if answer is None or not length.isdigit() or len(rest) >= min(int(length), ANSWER_BYTES_MAX):
            self._done(answer)

    def _done(self, answer: ClientResponse | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


def _answer(head: bytes, rest: bytes, protocol: str) -> ClientResponse | None:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        return None
    headers = _headers(head)
    answer = ClientResponse(int(words[1]), headers.get(b"content-type", b"").decode("latin-1"), rest)
    if (after := headers.get(b"retry-after", b"")).isdigit():
        answer.retry_after_s = float(after)
    if answer.status == SWITCHED and headers.get(b"upgrade", b"").lower() != protocol.encode():
        return None
    return answer


def _headers(head: bytes) -> dict[bytes, bytes]:
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines}


async def ask_upgrade(
    address: Address, tls: ssl.SSLContext | None, common: str, *, path: str = PATH, protocol: str = PROTOCOL
) -> tuple[asyncio.Transport, ClientResponse | None]:
    """Return the connection, and the answer to the upgrade; raise `Unavailable` if nothing can be reached.

    `protocol` at `path` is the native wire, unless it is another protocol with the same frames. The connection is
    closed unless the answer is 101.
    """
    asking = await dial(address, tls, partial(UpgradeAnswer, protocol))
    head = f"GET {path} HTTP/1.1\r\n{common}Connection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    try:
        asking.transport.write(head.encode("ascii"))
        async with asyncio.timeout(CONNECT_S):
            answer = await asking.answer
    except TimeoutError:
        asking.transport.abort()
        raise Unavailable(f"{address.shown} gave no answer within {CONNECT_S:g} s") from None
    except BaseException:
        asking.transport.abort()
        raise
    if answer is None or answer.status != SWITCHED:
        asking.transport.close()
    return asking.transport, answer
