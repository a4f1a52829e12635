"""The nodes of the instances of this process: they are there, with their newest bytes, whenever there is a session.

The node of another session, as that of a crashed process, is replaced in one step when an instance is announced: of
two processes that announce one id, the later one counts. After a lost connection only nodes of earlier sessions of this
process are replaced, so that the two do not take turns. A withdrawal deletes no node of another session.
"""

from __future__ import annotations

import logging
from collections import deque

from wherry.mesh.zookeeper.link import ZooKeeperLink
from wherry.mesh.zookeeper.nodes import Key, NodePaths
from wherry.model.errors import LimitReached, Unauthorized, Unavailable

_log = logging.getLogger("wherry.mesh.zookeeper")

ANNOUNCED_MAX = 1_000
"""Instances of one process."""

SESSIONS_MAX = 16
"""Of this process, that are remembered: the nodes of older ones are long gone."""

TRIES_MAX = 8
"""To write one node, while others change it at the same time."""


class Announcer:
    """What this process announces, and which of it is not yet known to be in ZooKeeper."""

    def __init__(self, link: ZooKeeperLink, paths: NodePaths) -> None:
        self._link, self._paths = link, paths
        self._wanted: dict[Key, bytes | None] = {}
        """The bytes of an instance, or None for one that is withdrawn and whose node may still be there."""
        self._unsure: dict[Key, bool] = {}
        """Instances to look after; True for those that were announced since, which replace the node of any session."""
        self._sessions: deque[int] = deque(maxlen=SESSIONS_MAX)
        """In which nodes of this process were written, oldest first."""

    def announce(self, key: Key, content: bytes) -> None:
        """Want an instance to be there; raise `LimitReached` at the bound."""
        if key not in self._wanted and len(self._wanted) >= ANNOUNCED_MAX:
            raise LimitReached("announced instances of a process", ANNOUNCED_MAX, len(self._wanted) + 1)
        self._wanted[key] = content
        self._unsure[key] = True

    def withdraw(self, key: Key) -> None:
        """Want an instance to be gone."""
        if key in self._wanted:
            self._wanted[key] = None
            self._unsure[key] = True

    def forget(self, key: Key) -> None:
        """Want nothing for an instance any more."""
        self._wanted.pop(key, None)
        self._unsure.pop(key, None)

    def check(self, key: Key) -> None:
        """Look again after the node of an instance."""
        if key in self._wanted:
            self._unsure.setdefault(key, False)

    def check_all(self) -> None:
        """Look again after all nodes: the connection was lost."""
        for key in self._wanted:
            self._unsure.setdefault(key, False)

    def of(self, service: str) -> list[Key]:
        """Return the instances of a service that are announced."""
        return [key for key, content in self._wanted.items() if key[0] == service and content is not None]

    async def settle(self, only: Key | None = None) -> None:
        """Bring ZooKeeper to what is wanted of all instances, or of one; raise the first error after all were tried."""
        failed: Exception | None = None
        for key in [key for key in self._unsure if only in {None, key}]:
            content = self._wanted.get(key)
            try:
                await (self._remove(key) if content is None else self._put(key, content))
            except (Unauthorized, Unavailable) as fault:
                failed = failed or fault
                if not self._link.connected:
                    break
                continue
            if self._wanted.get(key) is content:  # else it was changed meanwhile
                self._unsure.pop(key, None)
                if content is None:
                    self._wanted.pop(key, None)
        if failed is not None:
            raise failed

    async def _put(self, key: Key, content: bytes) -> None:
        path = self._paths.path(*key)
        for _ in range(TRIES_MAX):
            session = self._link.session
            if session is not None and session not in self._sessions:
                self._sessions.append(session)  # before the node is written: it may be, though there is no answer
            if await self._link.create(path, content):
                return
            found = await self._link.content(path)
            if found is None:
                continue
            known, owner = found
            if owner == session:
                if known == content or await self._link.write(path, content):
                    return
            elif not self._unsure[key] and owner not in self._sessions:
                return
            elif await self._link.replace(path, content):
                _log.info("instance %s of %s takes the place of one of another session", key[1], key[0])
                return
        raise Unavailable(f"the node {path} is changed by others all the time")

    async def _remove(self, key: Key) -> None:
        path = self._paths.path(*key)
        found = await self._link.content(path)
        if found is not None and found[1] == self._link.session:
            await self._link.delete(path)
        await self._link.delete(self._paths.path(key[0]))  # stays if the service has other instances
