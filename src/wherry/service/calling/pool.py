"""Connections to instances: opened when they are needed, shared by all calls, closed when they are idle.

An instance that cannot be reached is not dialled again before its pause is over; the pauses grow.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

import msgspec

from wherry.client.link.address import Address, common_lines, trust
from wherry.client.link.backoff import Backoff
from wherry.client.native.upgrade import SWITCHED, ask_upgrade
from wherry.model.errors import Unavailable
from wherry.service.calling.link import CallerLink
from wherry.wire.native.codec.invokes import PATH, PROTOCOL

LINKS_MAX: Final = 1_024
"""Open connections of one peer; beyond it the one that was idle longest is closed."""

IDLE_S: Final = 60.0
"""A connection without calls is closed after this time."""

TEXT_CHARS_MAX: Final = 500
"""Of why an instance refuses connections."""

TICK_S: Final = 5.0

FAILURES_MAX: Final = 4_096
"""Addresses that could not be reached, and are remembered."""


class _Problem(msgspec.Struct):
    """What is read of a problem document."""

    detail: str = ""


class _Failure:
    """An address that could not be reached lately."""

    def __init__(self) -> None:
        self.backoff = Backoff()
        self.until = 0.0
        self.why = ""


class LinkPool:
    """The connections of one peer, by the URL of the instance."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, token: Callable[[], str] | None = None) -> None:
        self._tls, self._token = tls, token
        self._loop = asyncio.get_running_loop()
        self.open: dict[str, CallerLink] = {}
        """By URL; those whose instance is closing are still among them until their last call has ended."""
        self._all: dict[CallerLink, None] = {}
        self._opening: dict[str, asyncio.Task[CallerLink]] = {}
        self._failures: dict[str, _Failure] = {}
        self._ticking: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def link(self, url: str, within_s: float) -> CallerLink:
        """Return an open connection; raise `Unavailable` if there is none, `TimeoutError` after `within_s`."""
        deadline = self._loop.time() + within_s
        while True:
            link = self.open.get(url)
            if link is not None and not link.is_closed:
                if link.is_leaving:
                    raise Unavailable(f"the instance at {url} is closing")
                if link.is_open:
                    return link
                async with asyncio.timeout_at(deadline):
                    await link.room()
                continue
            opening = self._opening.get(url) or self._begin(url)
            done, _ = await asyncio.wait({opening}, timeout=max(0.0, deadline - self._loop.time()))
            if not done:
                raise TimeoutError
            if opening.cancelled():
                raise Unavailable("the peer is closed")
            link = opening.result()
            if link.is_closed:
                raise Unavailable(f"the instance at {url} closed the connection at once: {link.why}")

    def _begin(self, url: str) -> asyncio.Task[CallerLink]:
        if self._is_closed:
            raise Unavailable("the peer is closed")
        failure = self._failures.get(url)
        if failure is not None and self._loop.time() < failure.until:
            raise Unavailable(failure.why)
        task = self._loop.create_task(self._open(url), name=f"wherry link to {url}")
        self._opening[url] = task
        task.add_done_callback(lambda done: self._opened(url, done))
        return task

    async def _open(self, url: str) -> CallerLink:
        address = Address.parse(url)
        token = self._token() if self._token is not None else None
        lines = common_lines(address, token)
        transport, answer = await ask_upgrade(address, trust(address, self._tls), lines, path=PATH, protocol=PROTOCOL)
        if answer is None or answer.status != SWITCHED:
            status = "no HTTP" if answer is None else f"status {answer.status}{_problem_text(answer.body)}"
            raise Unavailable(f"{address.shown} provides no services ({status})")
        transport.pause_reading()
        link = CallerLink(transport, url, self._ended)
        if token is not None:
            link.note_token(token)  # also without one, so that the first one is sent
        self._all[link] = None
        if answer.body:
            link.data_received(bytes(answer.body))
        if link.is_closed:
            raise Unavailable(f"{address.shown} broke the protocol at once: {link.why}")
        transport.resume_reading()
        return link

    def _opened(self, url: str, task: asyncio.Task[CallerLink]) -> None:
        del self._opening[url]
        fault = None if task.cancelled() else task.exception()
        if task.cancelled() or fault is not None:
            self._failed(url, fault)
            return
        link = task.result()
        if link.is_heard:
            self._failures.pop(url, None)
        if self._is_closed:
            link.close()
        elif link.is_closed:
            self._failed(url, Unavailable(link.why))
        else:
            self.open[url] = link
            self._bound()
            if self._ticking is None:
                self._ticking = self._loop.call_later(TICK_S, self._tick)

    def _failed(self, url: str, fault: BaseException | None) -> None:
        failure = self._failures.setdefault(url, _Failure())
        failure.until = self._loop.time() + failure.backoff.next_s()
        failure.why = str(fault or "the peer was closed")
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def _ended(self, link: CallerLink) -> None:
        self._all.pop(link, None)
        if self.open.get(link.url) is link:
            del self.open[link.url]
            if link.is_at_fault:
                self._failed(link.url, Unavailable(f"the instance at {link.url} failed: {link.why}"))

    def _bound(self) -> None:
        """Close the connection that was idle longest, if there are too many."""
        if len(self.open) > LINKS_MAX:
            idle = [link for link in self.open.values() if not link.calls]
            if idle:
                min(idle, key=lambda link: link.used_at).close()

    def _tick(self) -> None:
        now = self._loop.time()
        for link in list(self.open.values()):
            link.listen(now)
            if not link.is_closed and not link.calls and now - link.used_at > IDLE_S:
                link.close()
        self._ticking = self._loop.call_later(TICK_S, self._tick) if self.open else None

    async def close(self) -> None:
        """Close all connections; calls under way get `ConnectionLost`."""
        self._is_closed = True
        if self._ticking is not None:
            self._ticking.cancel()
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for link in list(self._all):
            link.close()


def _problem_text(body: Any) -> str:
    """Return the text of a problem document, as it follows a status; empty for anything else."""
    try:
        found = msgspec.json.decode(bytes(body), type=_Problem)
    except msgspec.MsgspecError:
        return ""
    return f": {found.detail[:TEXT_CHARS_MAX]}"
