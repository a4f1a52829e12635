"""Posts calls: one POST, one result. Every wait and every buffer has a bound, and no redirect is followed.

The timeout of a call covers name lookup, connection, TLS and answer. Of an answer, only the status and `Retry-After`
are used; its body is read up to a bound, so that the connection can be reused, and dropped: a user who chose the URL
must not read, as the error of a dead letter, what only this node can reach.
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

from wherry.client.link.connection import Bounds, Connection
from wherry.client.link.idle import Idle
from wherry.model.errors import Unavailable
from wherry.node.webhooks.lanes import Lane
from wherry.node.webhooks.lookups import NotTried
from wherry.node.webhooks.targets import Target, TargetRefused, Targets

CALLS = 64
CONNECT_S = 5.0
IDLE_S = 30.0
TRIAL_S = 1.0
"""Seconds that the first call to a host has in any case; then another host may get its place."""
BOUNDS = Bounds(head_bytes=16 << 10, answer_bytes=64 << 10, to_the_end=True)
WORDS_MAX = 200
RETRY_AFTER_S_MAX = 3_600.0

Kind: TypeAlias = Literal["push", "callback"]


def is_taken(status: int) -> bool:
    """Return whether a status means that the call was accepted."""
    return 200 <= status < 300


class PostResult(NamedTuple):
    """The answer to a call."""

    status: int
    retry_after_s: float = 0.0
    """The pause that the answer asks for: an hour at most."""


class Unreached(Exception):
    """No answer: refused, not listening, too late, or not HTTP. Its text is the error of a dead letter."""


class WebhookSender:
    """Posts to hosts that may be called, at most `calls` at a time, in three lanes.

    Half of the calls are for hosts that answered quickly the last time, a quarter for hosts that were slow or failed,
    and a quarter for hosts that were not called before, so that a new host is called soon however many others hang. In
    each lane one host has at most a share of the places.
    """

    def __init__(self, targets: Targets, calls: int = CALLS, *, tls: ssl.SSLContext | None = None) -> None:
        self._targets = targets
        self._tls = tls or ssl.create_default_context()
        self._idle = Idle(calls, IDLE_S, Connection.abort)
        quarter = max(1, calls // 4)
        half = max(1, calls - 2 * quarter)
        self.quick = Lane(half, max(1, half // 2))
        self.slow = Lane(quarter, max(1, quarter // 4))
        self.new = Lane(quarter, max(1, quarter // 4), trial_s=TRIAL_S)
        self.outcomes: Counter[tuple[Kind, str]] = Counter()
        """How calls ended: by class of status, or why there was no status."""

    async def post(
        self,
        target: Target,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        *,
        kind: Kind = "push",
        before_send: Callable[[], None] = lambda: None,
    ) -> PostResult:
        """Post and return the answer; raise `Unreached` if there is none in time, `NotTried` for a reason of this node.

        `before_send` is called before the first byte is sent.
        """
        outcome = "broken-off"
        try:
            answer = await self._post(target, _head(target, headers, len(body)), body, timeout_s, before_send)
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
        self, target: Target, head: bytes, body: bytes, timeout_s: float, before_send: Callable[[], None]
    ) -> PostResult:
        connection: Connection | None = None
        place = f"{target.secure} {target.authority}"
        try:
            async with asyncio.timeout(timeout_s) as limit:
                while (connection := self._idle.take(place)) is not None:
                    try:
                        return await _ask(connection, head, body, before_send)
                    except Unavailable:
                        if connection.received:  # else the server had closed it between two calls, which it may
                            raise
                connection = await self._connect(target, await self._begun(target, limit))
                return await _ask(connection, head, body, before_send)
        except TimeoutError:
            if connection is not None and connection.status:  # the status has arrived, only the body has not
                return _answer(connection)
            raise Unreached(f"{target.authority} timed out after {timeout_s:g} s") from None
        except (TargetRefused, Unavailable) as fault:
            raise Unreached(str(fault)) from None
        except (OSError, ValueError) as fault:  # ValueError: not a valid host name
            raise Unreached(f"{target.authority} cannot be reached: {_words(fault)}") from None
        finally:
            if connection is not None and connection.free:
                self._idle.keep(place, connection)
            elif connection is not None:
                connection.abort()

    async def _begun(self, target: Target, limit: asyncio.Timeout) -> Awaitable[list[str]]:
        """Begin a lookup. The timeout of the call does not run meanwhile, since the called host has no part in it."""
        loop, until = asyncio.get_running_loop(), limit.when()
        began = loop.time()
        limit.reschedule(None)
        begun = await self._targets.begin(target)
        limit.reschedule(None if until is None else until + loop.time() - began)
        return begun

    async def _connect(self, target: Target, begun: Awaitable[list[str]]) -> Connection:
        """Connect to the first of the allowed addresses that accepts."""
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

    async def _open(self, address: str, target: Target) -> Connection:
        name = target.host if target.secure else None
        tls = self._tls if target.secure else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(target.authority, BOUNDS), address, target.port, ssl=tls, server_hostname=name
        )
        return connection

    def close(self) -> None:
        """Close idle connections."""
        self._idle.close()


async def _ask(connection: Connection, head: bytes, body: bytes, before_send: Callable[[], None]) -> PostResult:
    """Send a call and return the answer. The status counts even if the rest is cut off or too long."""
    before_send()
    try:
        await connection.ask(head, [body])
    except Unavailable:
        if not connection.status:
            raise
    return _answer(connection)


def _answer(connection: Connection) -> PostResult:
    return PostResult(connection.status, _seconds(connection.headers.get(b"retry-after", b"")))


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    """Return the head of every call that a node makes; a header for all calls goes here."""
    lines = {"Host": target.authority, "User-Agent": "wherry", "Content-Length": str(length), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {target.path} HTTP/1.1\r\n{text}\r\n".encode("ascii")


def _seconds(retry_after: bytes) -> float:
    """Return a `Retry-After` in seconds from now: a number or a date; 0 for anything else."""
    text = retry_after.decode("latin-1").strip()
    try:
        wait_s = float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX)


def _words(fault: BaseException) -> str:
    """Return a fault in short words, without all details of OpenSSL."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({fault.verify_message})"
    if isinstance(fault, ConnectionError) and fault.errno:
        return os.strerror(fault.errno)
    text = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    return text[:WORDS_MAX] or type(fault).__name__
