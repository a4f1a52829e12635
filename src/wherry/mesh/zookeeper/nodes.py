"""Where instances are in ZooKeeper, and what was read there. Pure: bytes and names come in, instances go out.

    <root>/services/<service>/<id>     the bytes of an instance, in a node that is gone with the session of its process

Names of services and instances have percent escapes in the names of nodes. A node that is no instance is counted and
left alone: anyone with a right to the tree can write there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from wherry.mesh.instance import Instance, decode
from wherry.model.errors import InvalidInput

SERVICES_MAX = 1_000

INSTANCES_MAX = 10_000
"""Of all services together. Of more, the first by name are read, the others are counted as ignored."""

ROOT_CHARS_MAX = 256

DEFAULT_ROOT = "/wherry"

_ROOT = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")

Key = tuple[str, str]
"""A service and the id of an instance; no id for the service, neither for the services."""


def node_name(name: str) -> str:
    """Return the name of the node of a service or an instance.

    Examples
    --------
    >>> node_name("billing/v2"), node_name("..")
    ('billing%2Fv2', '%2E%2E')
    """
    return name.replace(".", "%2E") if name in {".", ".."} else quote(name, safe="")


def name_of(node: str) -> str | None:
    """Return what a node is named after, or None if it is no name that `node_name` gives."""
    try:
        name = unquote(node, errors="strict")
    except UnicodeDecodeError:
        return None
    return name if name and node_name(name) == node else None


class NodePaths:
    """The paths of nodes below a root."""

    def __init__(self, root: str) -> None:
        root = root.rstrip("/") or DEFAULT_ROOT
        if len(root) > ROOT_CHARS_MAX or not _ROOT.fullmatch(root) or root.split("/")[1] == "zookeeper":
            raise InvalidInput(
                "path",
                root,
                f"/name or /name/name of letters, digits, '-', '_' and '.', at most {ROOT_CHARS_MAX} characters, "
                "outside of /zookeeper",
            )
        self.top = f"{root}/services"

    def path(self, service: str = "", instance_id: str = "") -> str:
        """Return the path of an instance, of a service, or of all services."""
        return "/".join([self.top, *(node_name(name) for name in (service, instance_id) if name)])

    def key(self, path: str) -> Key | None:
        """Return which service and instance a path is about, or None for a path elsewhere."""
        if path == self.top:
            return "", ""
        if not path.startswith(f"{self.top}/"):
            return None
        names = [name_of(node) for node in path[len(self.top) + 1 :].split("/")]
        if len(names) > 2 or not all(names):
            return None
        return names[0] or "", (names[1] or "") if len(names) == 2 else ""


class Tree:
    """What was read: the services, and the instances of each.

    After a lost session, `hold` keeps the instances of before until they are read again or `release` ends it: the
    sessions of other processes were lost as well, and they need a moment to announce themselves again.
    """

    def __init__(self) -> None:
        self._services: dict[str, dict[str, Instance | None]] = {}
        self._foreign: dict[str, int] = {}
        """Nodes that are no names or too many, by service; those among the services under ''."""
        self._broken: dict[Key, None] = {}
        self._held: dict[str, dict[str, Instance]] = {}

    @property
    def ignored(self) -> int:
        """Return how many nodes are there that are no instance, or are more than is read."""
        return sum(self._foreign.values()) + len(self._broken)

    def keys(self) -> list[Key]:
        """Return the services and instances that there are nodes for."""
        services = [(service, "") for service in self._services]
        return services + [(service, each) for service, found in self._services.items() for each in found]

    def has(self, service: str, instance_id: str) -> bool:
        """Return whether there is a node for an instance."""
        return instance_id in self._services.get(service, {})

    def of(self, service: str) -> list[Instance]:
        """Return the instances of a service, with those that are held."""
        read = [each for each in self._services.get(service, {}).values() if each is not None]
        return read + list(self._held.get(service, {}).values())

    def set_services(self, nodes: Iterable[str]) -> tuple[list[str], list[str]]:
        """Set which services there are; return those that are new, and those that are gone."""
        names = self._names("", nodes, SERVICES_MAX)
        gone = [service for service in self._services if service not in names]
        for service in gone:
            self.forget_service(service)
        new = [service for service in names if service not in self._services]
        self._services.update((service, {}) for service in new)
        return new, gone

    def set_instances(self, service: str, nodes: Iterable[str]) -> list[str]:
        """Set which instances a service has; return the ids of those that are new and have to be read."""
        if service not in self._services:
            return []
        known = self._services[service]
        room = INSTANCES_MAX - sum(len(each) for each in self._services.values()) + len(known)
        names = self._names(service, nodes, room)
        for instance_id in [each for each in known if each not in names]:
            del known[instance_id]
            self._broken.pop((service, instance_id), None)
        new = [each for each in names if each not in known]
        known.update((each, None) for each in new)
        return new

    def forget_service(self, service: str) -> None:
        """Forget a service: its node is gone, and counts as new when it is there again."""
        self.set_instances(service, ())
        self._services.pop(service, None)
        self._foreign.pop(service, None)

    def forget(self, service: str, instance_id: str) -> None:
        """Forget an instance: its node is gone, and counts as new when it is there again."""
        self._services.get(service, {}).pop(instance_id, None)
        self._broken.pop((service, instance_id), None)

    def set_content(self, service: str, instance_id: str, content: bytes) -> None:
        """Set the bytes of the node of an instance."""
        if not self.has(service, instance_id):
            return
        self._held.get(service, {}).pop(instance_id, None)
        self._services[service][instance_id] = found = _instance(service, instance_id, content)
        if found is None:
            self._broken[service, instance_id] = None
        else:
            self._broken.pop((service, instance_id), None)

    def hold(self, known: Mapping[str, Iterable[Instance]]) -> None:
        """Forget what was read, and keep the instances of before until they are read again."""
        self._services.clear()
        self._foreign.clear()
        self._broken.clear()
        self._held = {service: {each.id: each for each in found} for service, found in known.items()}

    def release(self) -> list[str]:
        """Hold no instances any more; return the services that had some."""
        held, self._held = self._held, {}
        return [service for service, found in held.items() if found]

    def _names(self, service: str, nodes: Iterable[str], most: int) -> dict[str, None]:
        every = sorted(nodes)
        names = [name for name in map(name_of, every) if name is not None][: max(most, 0)]
        self._foreign[service] = len(every) - len(names)
        return dict.fromkeys(names)


def _instance(service: str, instance_id: str, content: bytes) -> Instance | None:
    try:
        found = decode(content)
    except InvalidInput:
        return None
    return found if (found.service, found.id) == (service, instance_id) else None
