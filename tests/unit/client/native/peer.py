"""The other side of a session, without a socket: what the session writes is read by the codec, and tests answer it."""

from __future__ import annotations

import asyncio
from typing import Any

from wherry.client.native.session import NativeSession
from wherry.client.native.stream import ClientStream
from wherry.wire.native.codec.documents import (
    ServerHello,
    StreamTerms,
    encode_error,
    encode_goodbye,
    encode_hello,
    encode_subscribed,
)
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.publishes import ConfirmEntry, encode_confirm
from wherry.wire.native.codec.reader import Frame, FrameReader
from wherry.wire.native.codec.settles import encode_settled


class Peer(asyncio.Transport):
    """The transport of a session, and the server behind it."""

    def __init__(self, timeout_s: float = 30.0, heartbeat_ms: int = 30_000) -> None:
        super().__init__()
        self._reader = FrameReader("client")
        self.frames: list[Frame] = []
        """What the session sent, and no test has taken yet."""
        self.writes = 0
        self.is_cut = False
        self.ended: list[NativeSession] = []
        self.session = NativeSession(self, timeout_s, self.ended.append)
        self.send(encode_hello(ServerHello(heartbeat_ms=heartbeat_ms)))
        assert self.take()[0] == Kind.HELLO
        self.writes = 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Do nothing: tests call the session."""

    def write(self, data: Any) -> None:
        """Read what the session writes."""
        self.writes += 1
        self.frames += self._reader.feed(bytes(data))
        assert self._reader.fault is None, self._reader.fault

    def is_closing(self) -> bool:
        """Return whether the session has closed it."""
        return self.is_cut

    def writelines(self, chunks: Any) -> None:
        """Read chunks as one write."""
        self.write(b"".join(chunks))

    def close(self) -> None:
        """Note that the session closed."""
        self.is_cut = True

    abort = close

    def take(self) -> Frame:
        """Return the next frame of the session."""
        return self.frames.pop(0)

    def send(self, data: bytes) -> None:
        """Send frames to the session."""
        self.session.data_received(data)

    def confirm(self, *entries: tuple[int, int, int, int]) -> None:
        """Confirm requests: first, requests, partition and offset of each entry."""
        self.send(encode_confirm([ConfirmEntry(*entry) for entry in entries]))

    def settled(self, first: int, requests: int = 1) -> None:
        """Answer settles."""
        self.send(encode_settled([(first, requests)]))

    def refuse(self, number: int, code: str, *, stream: bool = False) -> None:
        """Answer a request, or end a stream, with an error."""
        self.send(encode_error(number, b'{"code": "%s", "detail": "no"}' % code.encode(), stream=stream))

    def goodbye(self) -> None:
        """Announce a drain."""
        self.send(encode_goodbye("the broker is closing"))

    def pong(self) -> None:
        """Send a sign of life."""
        self.send(encode_frame(Kind.PONG))

    def subscribed(self, stream: ClientStream, *, acks: bool = True) -> None:
        """Open a stream."""
        self.send(encode_subscribed(stream.number, StreamTerms(consumer="c", lease_ms=30_000, acks=acks)))


async def turn() -> None:
    """Let the frames of this turn be written, and callers run that were answered."""
    for _ in range(3):
        await asyncio.sleep(0)
