"""The connection to ZooKeeper: kazoo's threads on one side, the event loop on the other.

kazoo calls back from threads of its own. All that such a callback does is to hand its result to the loop; what this
class and its users know is changed by the loop alone. A call whose connection is lost raises `Unavailable`: it may have
been carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    WriterNotClosedException,
)
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from wherry.mesh.urls import HostPort
from wherry.mesh.zookeeper.tls import TlsHandler
from wherry.model.errors import Unauthorized, Unavailable

_kazoo_log = logging.getLogger("wherry.mesh.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)  # below are passwords, the secrets of sessions, and a line for each try to connect

RECONNECT_S_MAX = 2.0

_GONE = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)
_REFUSED = (NoAuthError, AuthFailedError)


class ZooKeeperLink:
    """A connection that kazoo keeps up, and the few calls that a registry makes.

    `changed` is called in the loop with True when there is a connection, with False when it is lost, and with None when
    the session ended.
    """

    def __init__(
        self,
        hosts: Sequence[HostPort],
        session_ms: int,
        auth: str | None,
        changed: Callable[[bool | None], None],
        watched: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._names = ",".join(str(each) for each in hosts)
        self._changed, self._watched = changed, watched
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._turn = threading.Lock()
        """One of `close` and `renew` at a time: each stops the threads of kazoo, in a thread of its own."""
        self._closed = False
        self._tls = TlsHandler(tls) if tls is not None else None
        self._client = KazooClient(
            self._names,
            timeout=session_ms / 1_000,
            handler=self._tls,
            auth_data=[("digest", auth)] if auth else None,
            default_acl=CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE,
            connection_retry=KazooRetry(max_tries=-1, max_delay=RECONNECT_S_MAX),
            logger=_kazoo_log,
        )
        self._client.add_listener(self._state_in_thread)
        self.connected = False

    @property
    def session(self) -> int | None:
        """Return the number of the session, which owns the nodes that this process created."""
        return self._client.client_id[0] if self._client.client_id else None

    def open(self) -> None:
        """Begin to connect, and go on to do so until `close`."""
        self._loop = asyncio.get_running_loop()
        self._client.start_async()

    async def close(self) -> None:
        """End the session: its nodes are gone at once if ZooKeeper can be reached, else when the session expires."""
        self._closed = True
        self._lost()
        await asyncio.to_thread(self._stop)

    async def renew(self) -> None:
        """Give up a session that is lost by all likelihood, and connect as a new client.

        A server that lost its data refuses clients that saw more of it, and kazoo would try on with its old session.
        """
        await asyncio.to_thread(self._restart)

    def _stop(self) -> None:
        with self._turn, contextlib.suppress(WriterNotClosedException):  # it still connects; the thread is a daemon
            self._client.stop()
            self._client.close()

    def _restart(self) -> None:
        with self._turn, contextlib.suppress(WriterNotClosedException):  # the next time, then
            if not self._closed and not self._client.connected:
                self._client.stop()
                self._client.start_async()

    async def children(self, path: str) -> list[str] | None:
        """Return the names of the nodes below a path, and watch them; None if there is no such path."""
        return await self._found(self._client.get_children_async, path, self._watch_in_thread)

    async def content(self, path: str) -> tuple[bytes, int] | None:
        """Return the bytes of a node and the session that owns it, and watch it; None if there is no such node."""
        found = await self._found(self._client.get_async, path, self._watch_in_thread)
        return found and (found[0], found[1].ephemeralOwner)

    async def make_path(self, path: str) -> None:
        """Create a path, unless it is there."""
        await self._answer(self._client.ensure_path_async, path)

    async def create(self, path: str, content: bytes) -> bool:
        """Create a node that is gone with the session; return False if there is one already."""
        try:
            await self._answer(self._client.create_async, path, content, ephemeral=True, makepath=True)
        except NodeExistsError:
            return False
        return True

    async def write(self, path: str, content: bytes) -> bool:
        """Set the bytes of a node; return False if there is none."""
        return await self._found(self._client.set_async, path, content) is not None

    async def replace(self, path: str, content: bytes) -> bool:
        """Replace the node of another session by one of this session, in one step; return False if that failed."""
        both = self._client.transaction()
        both.delete(path)
        both.create(path, content, ephemeral=True)
        results = await self._answer(both.commit_async)
        return not any(isinstance(each, Exception) for each in results)

    async def delete(self, path: str) -> None:
        """Delete a node; leave it if it is not empty."""
        with contextlib.suppress(NotEmptyError):
            await self._found(self._client.delete_async, path)

    async def _found(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._answer(call, *arguments)
        except NoNodeError:
            return None

    async def _answer(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Make a call of kazoo and return its result; raise `Unavailable` when the connection is lost meanwhile."""
        if self._loop is None or not self.connected:
            raise self.unavailable()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        try:
            call(*arguments, **more).rawlink(lambda result: self._in_loop(_settle, future, result))
            return await future
        except _GONE:
            raise self.unavailable() from None
        except _REFUSED:
            raise Unauthorized(f"ZooKeeper at {self._names} refuses the use of {arguments[:1]}") from None
        except (NoNodeError, NodeExistsError, NotEmptyError):
            raise
        except KazooException as fault:
            raise Unavailable(f"ZooKeeper at {self._names} failed: {type(fault).__name__} {fault}") from None
        finally:
            self._waiting.discard(future)

    def unavailable(self) -> Unavailable:
        """Return the error for a call without a connection."""
        why = f" over TLS: {self._tls.fault}" if self._tls is not None and self._tls.fault else ""
        return Unavailable(f"ZooKeeper at {self._names} cannot be reached{why}")

    def _lost(self) -> None:
        """Fail the calls under way: kazoo would keep those that it got just now until there is a connection."""
        self.connected = False
        for future in self._waiting:
            if not future.done():
                future.set_exception(self.unavailable())

    def _in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call in the loop; in a thread of kazoo."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                self._loop.call_soon_threadsafe(call, *arguments)

    def _state_in_thread(self, state: str) -> None:
        self._in_loop(self._state, state)

    def _watch_in_thread(self, event: Any) -> None:
        if event.path is not None:  # else it is about the connection
            self._in_loop(self._watched, event.path)

    def _state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.connected = True
            self._changed(True)
            return
        self._lost()
        self._changed(None if state == KazooState.LOST else False)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.successful():
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)
