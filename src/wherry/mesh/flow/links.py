r"""Which nodes a node connects to: hubs to all hubs and to their own leaves, a leaf to its hub alone.

        leaf   leaf              A mesh of up to seven nodes is seven hubs without leaves.
           \   /
    hub ─── hub ─── leaf         Every node pulls from each node that it is connected to.
       \   /
        hub ─── leaf

All nodes decide by the same rule over the same records, so both ends of a link want it, or neither. The set of hubs is
bounded: the first seven by name. An eighth is refused by all, itself included, and each node reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wherry.mesh.flow.records import PeerRecord
from wherry.model.catalog.subscription import Role

HUBS_MAX = 7
"""Of a mesh: each message crosses as many links as there are other hubs, and each pair of hubs has two."""

LEAVES_MAX = 64
"""Behind one hub."""


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


def plan_links(me: MeshNode, fixed: Sequence[str], records: Iterable[PeerRecord]) -> LinkPlan:
    """Return which addresses to connect to: those of a fixed list, and those of records.

    The role of a node of the fixed list is known once it is connected: then `refusal` decides.

    Examples
    --------
    >>> b, l = PeerRecord(node="b", url="http://b:1"), PeerRecord(node="l", url="http://l:1", role="leaf", hub="b")
    >>> plan_links(MeshNode("a", "hub"), ["http://c:1"], [b, l]).wanted
    ('http://c:1', 'http://b:1')
    """
    wanted, refused = dict.fromkeys(fixed), {}
    if me.role == "leaf":
        return LinkPlan(tuple(wanted), {})
    others = [record for record in records if record.node != me.name]
    hubs = first_hubs([me.name, *(record.node for record in others if record.role == "hub")])
    leaves = 0
    for record in others:
        why = ""
        if record.role == "hub":
            why = _beyond(me.name, record.node, hubs)
        elif record.hub != me.name:
            continue
        else:
            leaves += 1
            why = f"more than {LEAVES_MAX} leaves" if leaves > LEAVES_MAX else ""
        if why:
            refused[record.url] = why
            wanted.pop(record.url, None)
        else:
            wanted[record.url] = None
    return LinkPlan(tuple(wanted), refused)


def first_hubs(names: Iterable[str]) -> list[str]:
    """Return the hubs that are the mesh: the first by name."""
    return sorted(dict.fromkeys(names))[:HUBS_MAX]


def refusal(me: MeshNode, peer: MeshNode, connected_hubs: Iterable[str]) -> str:
    """Return why a node is not to be connected to, as it describes itself; empty if it is.

    `connected_hubs` are the hubs that this node is connected to already.
    """
    if peer.name == me.name:
        return "it is this node"
    if me.role == "leaf":
        return "" if peer.role == "hub" else "a leaf connects to a hub"
    if peer.role == "hub":
        return _beyond(me.name, peer.name, first_hubs([me.name, peer.name, *connected_hubs]))
    return "" if peer.hub in (None, me.name) else f"its hub is {peer.hub}"


def _beyond(mine: str, other: str, hubs: list[str]) -> str:
    if mine in hubs and other in hubs:
        return ""
    return f"a mesh has {HUBS_MAX} hubs at most ({', '.join(hubs)}); let {other if mine in hubs else mine} be a leaf"
