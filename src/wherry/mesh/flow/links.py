r"""Which nodes a node connects to: hubs to all hubs and to their own leaves, a leaf to its hub alone.

        leaf   leaf              A mesh of up to seven nodes is seven hubs without leaves.
           \   /
    hub ─── hub ─── leaf         Every node pulls from each node that it is connected to.
       \   /
        hub ─── leaf

Any client may have written a record. So a record makes a node connect to an address, and nothing else: who is there
counts once it has answered. Then all nodes decide by the same rule, so both ends of a link want it, or neither. The set
of hubs is bounded: the first seven by name of those that answer. An eighth is refused by all, itself included, and each
node reports it; that is judged again all the time, since a hub with an earlier name may come later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from wherry.mesh.flow.records import PeerRecord
from wherry.model.catalog.subscription import Role

HUBS_MAX = 7
"""Of a mesh: each message crosses as many links as there are other hubs, and each pair of hubs has two."""

LEAVES_MAX = 64
"""Behind one hub."""

CANDIDATES_MAX = 2 * HUBS_MAX
"""Hubs that are known by their records alone, and are connected to, to see who they are."""


class MeshNode(NamedTuple):
    """This node, or one that it is connected to."""

    name: str
    role: Role
    hub: str | None = None
    """Of a leaf: its hub, as far as it is known."""


class LinkPlan(NamedTuple):
    """The addresses to connect to, and those that are refused, each with the reason."""

    wanted: tuple[str, ...]
    refused: dict[str, str]


def plan_links(
    me: MeshNode,
    fixed: Sequence[str],
    records: Iterable[PeerRecord],
    connected: Mapping[str, MeshNode] | None = None,
    is_trusted: Callable[[str], bool] = lambda _: True,
) -> LinkPlan:
    """Return which addresses to connect to: those of a fixed list, and those of records.

    A record changes nothing for addresses of the list, nor for a node that is `connected` at another address. Who a
    node is, is known once it is connected: then `refusal` decides.

    Examples
    --------
    >>> b, l = PeerRecord(node="b", url="http://b:1"), PeerRecord(node="l", url="http://l:1", role="leaf", hub="b")
    >>> plan_links(MeshNode("a", "hub"), ["http://c:1"], [b, l]).wanted
    ('http://c:1', 'http://b:1')
    """
    wanted, refused = dict.fromkeys(fixed), dict[str, str]()
    if me.role == "leaf":
        return LinkPlan(tuple(wanted), {})
    places = {node.name: url for url, node in (connected or {}).items()}
    left = {"hub": CANDIDATES_MAX, "leaf": LEAVES_MAX}
    for record in records:
        if record.node == me.name or record.url in fixed or (record.role == "leaf" and record.hub != me.name):
            continue
        if (place := places.get(record.node)) is not None:
            wanted[place] = None
        elif not is_trusted(record.url):
            refused[record.url] = "the address is not one of mesh.trusted"
        elif not left[record.role]:
            what = f"{LEAVES_MAX} leaves" if record.role == "leaf" else f"{CANDIDATES_MAX} hubs announce themselves"
            refused[record.url] = f"more than {what}"
        else:
            wanted[record.url] = None
            left[record.role] -= 1
    return LinkPlan(tuple(wanted), refused)


def is_among(url: str, patterns: Iterable[str]) -> bool:
    """Return whether an address is one of some patterns, in which `*` stands for a part of the host name or the port.

    Examples
    --------
    >>> is_among("https://a.mesh.example:7070", ["https://*.mesh.example:7070"])
    True
    >>> is_among("https://a.example:7070/.mesh.example:7070", ["https://*.mesh.example:7070"])
    False
    """
    return any(re.fullmatch("[A-Za-z0-9.-]*".join(map(re.escape, each.split("*"))), url) for each in patterns)


def run_behind(run: str, hub: str | None) -> str:
    """Return what identifies the data of a node as it is connected now.

    What a leaf published before it went to another hub may still be under way by the first one. A later message comes
    by another way and may be faster, so it is one of another origin.
    """
    return run if hub is None else f"{run}-{blake2b(hub.encode(), digest_size=3).hexdigest()}"


def first_hubs(names: Iterable[str]) -> list[str]:
    """Return the hubs that are the mesh: the first by name."""
    return sorted(dict.fromkeys(names))[:HUBS_MAX]


def refusal(me: MeshNode, peer: MeshNode, other_hubs: Iterable[str]) -> str:
    """Return why a node is not to be connected to, as it describes itself; empty if it is.

    `other_hubs` are the hubs that answer this node, whether it is connected to them or refuses them. A leaf that does
    not know its hub yet is nobody's: its messages would come by a second way as soon as it does.
    """
    if peer.name == me.name:
        return "it is this node"
    if me.role == "leaf":
        return "" if peer.role == "hub" else "a leaf connects to a hub"
    if peer.role == "hub":
        return _beyond(me.name, peer.name, first_hubs([me.name, peer.name, *other_hubs]))
    if peer.hub is None:
        return "it is a leaf that has not reached its hub yet"
    return "" if peer.hub == me.name else f"its hub is {peer.hub}"


def _beyond(mine: str, other: str, hubs: list[str]) -> str:
    if mine in hubs and other in hubs:
        return ""
    return f"a mesh has {HUBS_MAX} hubs at most ({', '.join(hubs)}); let {other if mine in hubs else mine} be a leaf"
