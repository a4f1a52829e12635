"""A peer for callers without an event loop: the same calls, each waiting for its result.

One thread in the background runs the peer. Methods that this process provides run in that thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

from wherry.client.sync.portal import Portal, waits
from wherry.model.errors import Closed
from wherry.service.peer import Callback, Peer, peer


def peer_sync(**options: Any) -> SyncPeer:
    """Return a peer for callers without an event loop, to be used with `with`; the options are those of `peer`.

    Examples
    --------
    >>> def main():
    ...     with wherry.peer_sync(registry="static://127.0.0.1:7080") as peer:
    ...         peer.call("billing.total", {"items": [1, 2]})
    """
    return SyncPeer(peer(**options))


class SyncPeer:
    """The calls of `Peer`, each waiting for its result; `with` closes it, or `close`."""

    call = waits(Peer.call)
    drain = waits(Peer.drain)

    def __init__(self, opening: Peer) -> None:
        self.other = opening
        self.portal = Portal()
        try:
            self.portal.run(opening.__aenter__())
        except BaseException:
            self.portal.close()
            raise

    def __enter__(self) -> SyncPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Return where the services of this process are reached; empty if there are none."""
        return self.other.url

    def start_call(
        self, method: str, argument: object = b"", *, callback: Callback | None = None, **more: Any
    ) -> Future[Any]:
        """Start a call, and return at once: a future, and a callback, which is called in the background thread."""
        ended: Future[Any] = Future()

        def begin() -> None:
            try:
                task = self.other.start_call(method, argument, callback=callback, **more)
            except Exception as fault:
                ended.set_exception(fault)
                return
            ended.add_done_callback(lambda done: self._cancel(task) if done.cancelled() else None)
            task.add_done_callback(lambda done: _copy(done, ended))

        self.portal.soon(begin)
        return ended

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        with suppress(Closed):  # then it is cancelled anyway
            self.portal.soon(task.cancel)

    def close(self) -> None:
        """Drain and close; once closed, it does nothing."""
        try:
            with suppress(Closed):  # another thread closes it, or has
                self.portal.run(self.other.close())
        finally:
            self.portal.close()


def _copy(done: asyncio.Task[Any], ended: Future[Any]) -> None:
    """Give a future what a task ended with."""
    if not ended.set_running_or_notify_cancel():
        return
    if done.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (fault := done.exception()) is not None:
        ended.set_exception(fault)
    else:
        ended.set_result(done.result())
