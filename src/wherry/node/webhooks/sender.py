"""Outgoing calls: one POST, one verdict. Every wait and every buffer has a bound, and nobody's redirect is followed.

A call has its whole time for name, connection, TLS and answer. Of an answer status and `Retry-After` count; its body is
read up to a bound, so that the connection can be used again, and thrown away: whoever chose the URL must not read
through us, as the error of a dead letter, what only we can reach.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple, TypeAlias

import httptools

from wherry.node.webhooks.lanes import Lane
from wherry.node.webhooks.lookups import NotTried
from wherry.node.webhooks.targets import Refused, Target, Targets

CALLS = 64
CONNECT_S = 5.0
IDLE_S = 30.0
TRIAL_S = 1.0
"""What the first call to somebody has for sure; then another may have its place."""
HEAD_BYTES_MAX = 16 << 10
ANSWER_BYTES_MAX = 64 << 10
READ_BYTES = 16 << 10
WORDS_MAX = 200
RETRY_AFTER_S_MAX = 3_600.0

Kind: TypeAlias = Literal["push", "callback"]


def is_taken(status: int) -> bool:
    """Whether an answer says that the call was taken."""
    return 200 <= status < 300


class Answer(NamedTuple):
    """What came back."""

    status: int
    retry_after_s: float = 0.0
    """How long to stay away, if it says so: an hour at most."""


class Unreached(Exception):
    """No answer: refused, nobody there, too late, or not HTTP. Its text is for the error of a dead letter."""


class Sender:
    """Posts to anybody who may be called, at most `calls` at a time, in three lanes.

    Half of the calls are for those that are known to be quick. A quarter is for those that were slow or failed the last
    time, and a quarter for those that nobody knows yet: however many hang, somebody new is called soon. In each lane
    one host has a share.
    """

    def __init__(self, targets: Targets, calls: int = CALLS, *, tls: ssl.SSLContext | None = None) -> None:
        self._targets = targets
        self._tls = tls or ssl.create_default_context()
        self._idle: dict[tuple[str, int, bool], list[tuple[_Line, float]]] = {}
        self._idle_max = calls
        quarter = max(1, calls // 4)
        half = max(1, calls - 2 * quarter)
        self.quick = Lane(half, max(1, half // 2))
        self.slow = Lane(quarter, max(1, quarter // 4))
        self.new = Lane(quarter, max(1, quarter // 4), trial_s=TRIAL_S)
        self.outcomes: Counter[tuple[Kind, str]] = Counter()
        """How calls ended: by class of status, or why there was none."""

    async def post(
        self,
        target: Target,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        *,
        kind: Kind = "push",
        on_sent: Callable[[], None] = lambda: None,
    ) -> Answer:
        """The answer; `Unreached` if there is none in time, `NotTried` if that is not the client's fault.

        `on_sent` is called before the first byte goes out.
        """
        outcome = "broken-off"
        try:
            answer = await self._post(target, _head(target, headers, len(body)), body, timeout_s, on_sent)
            outcome = f"{answer.status // 100}xx"
        except Unreached:
            outcome = "unreached"
            raise
        except NotTried:
            outcome = "not-tried"
            raise
        finally:
            self.outcomes[kind, outcome] += 1
        return answer

    async def _post(
        self, target: Target, head: bytes, body: bytes, timeout_s: float, on_sent: Callable[[], None]
    ) -> Answer:
        line: _Line | None = None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                while (line := self._kept(target)) is not None:
                    on_sent()
                    if await line.ask(head, body):
                        return self._done(target, line)
                    line.close()  # the other side had closed it, as it may
                line = await self._connect(target, await self._begun(target, limit))
                on_sent()
                if not await line.ask(head, body):
                    raise Unreached(f"{target.authority} closed the connection without an answer")
                return self._done(target, line)
        except TimeoutError:
            if line is not None and line.status:  # the answer is there, only its body is not
                return line.answer()
            raise Unreached(f"{target.authority} timed out after {timeout_s:g} s") from None
        except Refused as fault:
            raise Unreached(str(fault)) from None
        except (OSError, ValueError, httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            # ValueError: a name that is none
            raise Unreached(f"{target.authority} cannot be reached: {_words(fault)}") from None
        finally:
            if line is not None and not line.is_kept:
                line.close()

    async def _begun(self, target: Target, limit: asyncio.Timeout) -> Awaitable[list[str]]:
        """A lookup under way. Until it is, the clock of the call stands still: the client has no part in that."""
        loop, until = asyncio.get_running_loop(), limit.when()
        began = loop.time()
        limit.reschedule(None)
        begun = await self._targets.begin(target)
        limit.reschedule(None if until is None else until + loop.time() - began)
        return begun

    async def _connect(self, target: Target, begun: Awaitable[list[str]]) -> _Line:
        """A connection to an address that was judged, one after the other if there are several."""
        why = f"no address of its name within {CONNECT_S:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._targets.addresses(target, begun)
                why = f"no connection within {CONNECT_S:g} s"
                for address in addresses:
                    try:
                        return await self._open(address, target)
                    except OSError as fault:
                        why = _words(fault)
        raise ConnectionError(why)

    async def _open(self, address: str, target: Target) -> _Line:
        name = target.host if target.secure else None
        tls = self._tls if target.secure else None
        return _Line(*await asyncio.open_connection(address, target.port, ssl=tls, server_hostname=name))

    def _kept(self, target: Target) -> _Line | None:
        lines = self._idle.get(_place(target), [])
        now = asyncio.get_running_loop().time()
        while lines:
            line, since = lines.pop()
            if line.is_open() and now - since < IDLE_S:
                line.is_kept = False
                return line
            line.close()
        self._idle.pop(_place(target), None)
        return None

    def _done(self, target: Target, line: _Line) -> Answer:
        if line.keep_alive and line.is_open():
            line.is_kept = True
            self._idle.setdefault(_place(target), []).append((line, asyncio.get_running_loop().time()))
            self._weed()
        return line.answer()

    def _weed(self) -> None:
        """Close those that waited longest when there are too many."""
        while sum(map(len, self._idle.values())) > self._idle_max:
            place = min(self._idle, key=lambda each: self._idle[each][0][1])
            self._idle[place].pop(0)[0].close()
            if not self._idle[place]:
                del self._idle[place]

    def close(self) -> None:
        """Let go of connections that wait for the next call."""
        for lines in self._idle.values():
            for line, _ in lines:
                line.close()
        self._idle.clear()


class _Line:
    """One connection, one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.is_kept = False
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self._retry_after = b""
        self.keep_alive = False
        self._complete = False
        self._is_clean = True

    def answer(self) -> Answer:
        """What is known of the answer so far."""
        return Answer(self.status, _seconds(self._retry_after))

    def is_open(self) -> bool:
        """Whether nobody has closed it, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Go at once."""
        self._writer.transport.abort()

    async def ask(self, head: bytes, body: bytes) -> bool:
        """Send a call and read its answer; False if the other side had closed before the first byte of one."""
        self._begin()
        got = 0
        try:
            self._writer.writelines([head, body])
            await self._writer.drain()
            data = await self._reader.read(READ_BYTES)
        except ConnectionError:
            return False
        while data:
            got += len(data)
            self._parser.feed_data(data)
            if self._complete or (self.status and got > ANSWER_BYTES_MAX):
                break
            if not self.status and got > HEAD_BYTES_MAX:
                raise OSError(f"the head of its answer is longer than {HEAD_BYTES_MAX} bytes")
            data = await self._reader.read(READ_BYTES)
        self.keep_alive = self.keep_alive and self._complete and self._is_clean
        if got and not self.status:
            raise OSError("its answer broke off")
        return bool(got)

    # ---------------------------------------------------------------------------------------------------- the parser

    def on_message_begin(self) -> None:
        self._is_clean = not self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete and name.lower() == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        if self._complete:  # somebody says more than he was asked
            return
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0  # "go on", and then the real one
        self.keep_alive = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self._complete = self._complete or self.status > 0


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    lines = {"Host": target.authority, "Content-Length": str(length), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {target.path} HTTP/1.1\r\n{text}\r\n".encode("ascii")


def _seconds(retry_after: bytes) -> float:
    """What a `Retry-After` says, in seconds from now: a number or a date; 0 for what is neither."""
    text = retry_after.decode("latin-1").strip()
    try:
        wait_s = float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX)


def _place(target: Target) -> tuple[str, int, bool]:
    return target.host, target.port, target.secure


def _words(fault: BaseException) -> str:
    """A fault for people: not the whole of what OpenSSL says."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({fault.verify_message})"
    if isinstance(fault, ConnectionError) and fault.errno:
        return os.strerror(fault.errno)
    text = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    return text[:WORDS_MAX] or type(fault).__name__
