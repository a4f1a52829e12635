"""The registry that ZooKeeper keeps: announces the instances of this process, and follows those of all others.

While ZooKeeper cannot be reached, what was known last stays. When a session was lost, the instances of this process are
announced again as soon as there is a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence

from wherry.mesh.instance import Instance, encode
from wherry.mesh.registry import Roster
from wherry.mesh.starting import Starting
from wherry.mesh.urls import HostPort
from wherry.mesh.zookeeper.announcing import Announcer
from wherry.mesh.zookeeper.link import ZooKeeperLink
from wherry.mesh.zookeeper.nodes import Key, NodePaths
from wherry.mesh.zookeeper.reading import TreeReader
from wherry.model import check
from wherry.model.errors import InvalidInput, Unauthorized, Unavailable

_log = logging.getLogger("wherry.mesh.zookeeper")

SESSION_MS = 10_000
START_MS = 15_000
HOLD_MS_MIN = 10_000
"""For instances that are not there after a lost session; longer if sessions are longer."""

AGAIN_S = 2.0
"""After a step that failed while there is a connection."""

AUTH_CHARS_MAX = 256


class ZooKeeperRegistry:
    """A registry of the instances that have a node in ZooKeeper.

    Parameters
    ----------
    hosts, root
        The servers, and the path below which the nodes are; `/wherry` if it is empty.
    session_ms
        How long the instances of a process stay after it was last heard of; ZooKeeper has bounds of its own for that.
    start_ms
        How long `start` waits for a connection.
    auth
        `user:password` of ZooKeeper's scheme *digest*. Nodes are then created for this user alone.
    tls
        Connect over TLS, to the secure port of the servers; `zookeeper_tls` makes a context from files.
    """

    def __init__(
        self,
        hosts: Sequence[HostPort],
        root: str = "",
        *,
        session_ms: int = SESSION_MS,
        start_ms: int = START_MS,
        auth: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check.integer("session_ms", session_ms, 100, 3_600_000)
        self._start_s = check.integer("start_ms", start_ms, 1, 3_600_000) / 1_000
        self._session_s, self._hold_s = session_ms / 1_000, max(session_ms, HOLD_MS_MIN) / 1_000
        paths = NodePaths(root)
        self._roster = Roster()
        self._link = ZooKeeperLink(hosts, session_ms, _checked_auth(auth), self._changed, self._watched, tls)
        self._announcer = Announcer(self._link, paths)
        self._reader = TreeReader(self._link, paths, self._roster)
        self._wake, self._connected, self._one = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._session_lost = self._holding = False
        self._release: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._starting = Starting()
        self.sessions_lost = 0
        """How often a session ended, and with it the nodes of this process."""

    @property
    def roster(self) -> Roster:
        """Return the instances that were read last."""
        return self._roster

    @property
    def reachable(self) -> bool:
        """Return whether there is a connection."""
        return self._link.connected

    @property
    def ignored(self) -> int:
        """Return how many nodes below the root are no instances, or more than are read."""
        return self._reader.tree.ignored

    async def start(self) -> None:
        """Connect and read; raise `Unavailable` without a connection, `Unauthorized` if ZooKeeper refuses the user."""
        self._starting.check_open()
        if not self._starting.begun:
            await self._starting.run(self._begin, self._stop)

    async def _begin(self) -> None:
        self._link.open()
        try:
            async with asyncio.timeout(self._start_s):
                await self._connected.wait()
                await self._step()
        except TimeoutError:
            raise self._link.unavailable() from None
        self._task = asyncio.create_task(self._follow(), name="registry in ZooKeeper")
        self._renewing = asyncio.create_task(self._renew(), name="sessions in ZooKeeper")

    async def announce(self, instance: Instance) -> None:
        """Announce an instance; without a connection it is announced as soon as there is one."""
        key, content = _key(instance.checked()), encode(instance)
        self._starting.check_open()
        self._announcer.announce(key, content)
        try:
            await self._now(key)
        except Unauthorized:
            self._announcer.forget(key)
            raise

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Withdraw an instance; without a connection its node goes with the session, or when there is a connection."""
        self._announcer.withdraw((service, instance_id))
        await self._now((service, instance_id))

    async def close(self) -> None:
        """End the session, and with it the nodes of this process."""
        if not self._starting.closed:
            await self._starting.end()
            await self._stop()

    async def _stop(self) -> None:
        self._stop_release()
        for task in (self._task, self._renewing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self._link.close()

    async def _now(self, key: Key) -> None:
        """Bring ZooKeeper to what is wanted of an instance, if that is possible now; else it is done later."""
        if not self._link.connected:
            return
        try:
            async with self._one:
                await self._announcer.settle(key)
        except Unavailable:
            self._wake.set()

    async def _follow(self) -> None:
        """Follow what changes, for as long as the registry is open."""
        loop, failing = asyncio.get_running_loop(), False
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._link.connected:
                continue
            try:
                await self._step()
                failing = False
            except Exception as fault:  # whatever it is, the next step comes
                if self._link.connected and not failing:
                    failing = True
                    trace = None if isinstance(fault, Unauthorized | Unavailable) else fault
                    _log.warning("%s; what was known last stays", fault, exc_info=trace)
                loop.call_later(AGAIN_S, self._wake.set)

    async def _renew(self) -> None:
        """Begin a new session when there was no connection for longer than a session lasts."""
        down = False
        while True:
            await asyncio.sleep(self._session_s)
            if down and not self._link.connected:
                await self._link.renew()
            down = not self._link.connected

    async def _step(self) -> None:
        """Announce what is not announced, and read what changed."""
        async with self._one:
            await self._announcer.settle()
            services = await self._reader.read()
        self._begin_release()
        for key in [key for service in services for key in self._announcer.of(service)]:
            if not self._reader.tree.has(*key):  # deleted by others
                self._announcer.check(key)
                self._wake.set()

    def _watched(self, path: str) -> None:
        self._reader.changed(path)
        self._wake.set()

    def _changed(self, connected: bool | None) -> None:
        """Note that the connection is there, is lost (False), or its session is (None)."""
        if self._starting.closed:
            return
        if connected:
            if self._session_lost:
                self._hold()
            if self._connected.is_set():
                _log.info("ZooKeeper: connected again")
            self._announcer.check_all()
            self._reader.begin_again()
            self._connected.set()
            self._wake.set()
            return
        self._stop_release()
        if connected is None:
            self._session_lost = True
            self.sessions_lost += 1
        _log.warning(
            "ZooKeeper: the %s is lost; what was known last stays", "session" if connected is None else "connection"
        )

    def _hold(self) -> None:
        """Keep what is known: the sessions of the others may be lost as well, and come back one by one."""
        self._session_lost = False
        self._holding = True
        self._reader.tree.hold(self._roster.services)

    def _begin_release(self) -> None:
        """Give up in a while what is held: all was read, so that only what nobody announced again is missing."""
        if self._holding and self._release is None and self._link.connected:
            self._release = asyncio.get_running_loop().call_later(self._hold_s, self._give_up)

    def _stop_release(self) -> None:
        """Keep what is held until all was read again: the connection is lost."""
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def _give_up(self) -> None:
        self._holding, self._release = False, None
        self._reader.release()


def _key(instance: Instance) -> Key:
    return instance.service, instance.id


def _checked_auth(auth: object) -> str | None:
    if auth is None:
        return None
    if not isinstance(auth, str) or len(auth) > AUTH_CHARS_MAX or not all(auth.partition(":")):
        raise InvalidInput("auth", "a value that is not shown", f"user:password, at most {AUTH_CHARS_MAX} characters")
    return auth
