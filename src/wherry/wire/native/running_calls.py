"""CALL frames of one session: each runs as a task beside the others, and is answered when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from wherry.model.errors import LimitReached, Unavailable, WherryError
from wherry.wire.native.application import Application, ApplicationCall, CallReply
from wherry.wire.native.codec.calls import AnswerHead, decode_call, encode_answer
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import chunk_bytes
from wherry.wire.native.transport import Transport

CALLS_MAX = 1_024
"""Calls of a session under way; one more is refused."""

SMALL_BYTES = 16 << 10
"""Smaller bodies and answers fit into the buffers of any connection, and are not counted."""

KEPT_BYTES_MAX = 64 << 20
"""Bytes of answers that one client has not read; another answer is refused then, or one client would have the room of
all."""

CANCELLED = 499
"""The status of a call that its client gave up."""

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class _Running(NamedTuple):
    call: ApplicationCall
    task: asyncio.Task[None]


class RunningCalls:
    """The calls of one session that are under way."""

    def __init__(
        self,
        application: Application,
        transport: Transport,
        send: Callable[..., None],
        spawn: Spawn,
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self._application, self._transport, self._send, self._spawn = application, transport, send, spawn
        self._room = room
        self._running: dict[int, _Running] = {}
        self._unwanted: set[int] = set()
        """Calls that were given up before they began."""
        self.kept_bytes = 0
        """Bytes of answers that the client has not read yet."""
        self._is_over = False

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, number: int) -> bool:
        return number in self._running

    def begin(self, number: int, body: bytes) -> None:
        """Begin a call."""
        if len(self._running) >= CALLS_MAX:
            raise LimitReached("calls under way of a connection", CALLS_MAX, len(self._running) + 1)
        head, content = decode_call(body)
        size = content.nbytes if content.nbytes > SMALL_BYTES else 0
        call = self._application.call(head, content)
        self._application.hold(size)
        self._running[number] = _Running(call, self._spawn(self._run(number, call, size)))

    def cancel(self, number: int) -> None:
        """End a call that waits, or has not begun; any other runs to its end."""
        running = self._running.get(number)
        if running is None:
            return
        self._unwanted.add(number)
        if running.call.waits:
            running.task.cancel()

    def drained(self) -> None:
        """Stop counting answers, since the client has read them."""
        if self.kept_bytes:
            self._application.keep(-self.kept_bytes)
            self.kept_bytes = 0

    def lost(self) -> None:
        """End calls that wait, since the connection is closed; others run to their end, and are undone."""
        self._is_over = True
        for number in list(self._running):
            self.cancel(number)
        self.drained()

    async def _run(self, number: int, call: ApplicationCall, held: int) -> None:
        try:
            await self._transport.wait_for_budget()
            await self._room()  # else the answers of a client that reads nothing would take the memory of all
            reply = CallReply(CANCELLED, {}, [])
            if number not in self._unwanted:
                reply = await self._transport.timed(call.run())
        except asyncio.CancelledError:
            reply = CallReply(CANCELLED, {}, [])
        finally:
            del self._running[number]
            self._unwanted.discard(number)
            self._application.hold(-held)
        if self._is_over:
            if reply.undo is not None:
                reply.undo()
            return
        self._answer(number, reply)

    def _answer(self, number: int, reply: CallReply) -> None:
        """Send an answer, or in its place that it is too large or that there is no room for it."""
        size = chunk_bytes(reply.body)
        counted = size if size > SMALL_BYTES else 0
        try:
            chunks = encode_answer(number, AnswerHead(reply.status, reply.headers), reply.body)
            if counted and self.kept_bytes and self.kept_bytes + counted > KEPT_BYTES_MAX:
                raise Unavailable(f"answers of {self.kept_bytes} bytes are not read yet")
            self._application.keep(counted)
        except WherryError as fault:
            if reply.undo is not None:
                reply.undo()
            status = 413 if isinstance(fault, WireFault) else 503
            chunks = encode_answer(number, AnswerHead(status, {}), [self._application.problem(fault)])
            counted = 0
        self.kept_bytes += counted
        self._send(*chunks)
