"""What is in ZooKeeper, kept up to date by its watches: each says once that a node changed, and is set by a new look.

The roster changes when all that was to be read has been read: a connection that is lost in the middle changes nothing.
A look that finds no node sets no watch. So what it was for is forgotten, and the node above is read again: a node that
is there again by then counts as new.
"""

from __future__ import annotations

import asyncio

from wherry.mesh.registry import Roster
from wherry.mesh.zookeeper.link import ZooKeeperLink
from wherry.mesh.zookeeper.nodes import Key, NodePaths, Tree
from wherry.model.errors import Unauthorized

READS_MAX = 64
"""Under way at a time."""

_TOP = ("", "")


class TreeReader:
    """Reads what changed, and what is new below it."""

    def __init__(self, link: ZooKeeperLink, paths: NodePaths, roster: Roster) -> None:
        self._link, self._paths, self._roster = link, paths, roster
        self.tree = Tree()
        self._changed: dict[Key, None] = {}
        self._services: dict[str, None] = {}
        """Services that were read since the roster was changed last."""

    def changed(self, path: str) -> None:
        """Note that a node changed."""
        key = self._paths.key(path)
        if key is not None:
            self._changed[key] = None

    def begin_again(self) -> None:
        """Read everything: the watches were lost with the connection."""
        self._changed = dict.fromkeys([_TOP, *self.tree.keys()])
        self._services.update(dict.fromkeys(self._roster.services))

    def release(self) -> None:
        """Give up the instances that were held since the session was lost."""
        for service in self.tree.release():
            self._roster.replace(service, self.tree.of(service))

    async def read(self) -> list[str]:
        """Read all that changed, and set the roster; return the services that were read."""
        while self._changed:
            # Services before their instances: those of a service that is gone are not read.
            keys = sorted(self._changed)[:READS_MAX]
            for key in keys:
                del self._changed[key]
            results = await asyncio.gather(*map(self._read_one, keys), return_exceptions=True)
            for key, result in zip(keys, results, strict=True):
                if isinstance(result, BaseException):
                    self._changed[key] = None
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        read, self._services = list(self._services), {}
        for service in read:
            self._roster.replace(service, self.tree.of(service))
        return read

    async def _read_one(self, key: Key) -> None:
        service, instance_id = key
        path = self._paths.path(*key)
        if key == _TOP:
            new, gone = self.tree.set_services(await self._top(path))
            self._services.update(dict.fromkeys(gone))
            self._changed.update(((each, ""), None) for each in new)
        elif not instance_id:
            await self._service(service, path)
        elif self.tree.has(service, instance_id):
            await self._instance(service, instance_id, path)

    async def _service(self, service: str, path: str) -> None:
        try:
            nodes = await self._link.children(path)
        except Unauthorized:
            nodes = [""]  # counted as one that is no instance
        if nodes is None:
            self.tree.forget_service(service)
            self._changed[_TOP] = None
            nodes = []
        self._changed.update(((service, each), None) for each in self.tree.set_instances(service, nodes))
        self._services[service] = None

    async def _instance(self, service: str, instance_id: str, path: str) -> None:
        try:
            found = await self._link.content(path)
        except Unauthorized:
            found = b"", 0
        if found is not None:
            self.tree.set_content(service, instance_id, found[0])
        else:
            self.tree.forget(service, instance_id)
            self._changed[service, ""] = None
        self._services[service] = None

    async def _top(self, path: str) -> list[str]:
        found = await self._link.children(path)
        while found is None:
            await self._link.make_path(path)
            found = await self._link.children(path)
        return found
