"""What this node asks of a peer about one topic: what it is there, and the subscription of this node.

The subscription is made once and lasts. Its lease, retries and bounds follow the configuration of this node; one that
reads for another node, or in another way, is not touched.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from wherry.client.link.errors import error_of
from wherry.client.link.transport import ClientRequest
from wherry.client.native.session import NativeSession
from wherry.client.requests import parsed, path
from wherry.mesh.flow.links import MeshNode
from wherry.model.errors import AlreadyExists, NotFound
from wherry.node.mesh.calling import SessionCaller
from wherry.node.mesh.figures import TopicAtNode

LEASE_MS = 60_000

SUBSCRIPTIONS = ("mesh.", "mesh-leaf.")
"""What the subscriptions of hubs and of leaves begin with, at their peers."""

CHANGED = ("lease_ms", "retry", "buffer_messages", "buffer_bytes")
FIXED = ("peer", "peer_role", "assignment")


class Backlog(msgspec.Struct, frozen=True):
    """How much a peer keeps for this node of each topic before it cuts the subscription off."""

    messages: int = 1_000_000
    bytes: int = 1 << 30


class Position:
    """How far this node has read a topic at a peer, since the link was made.

    After a cut-off it goes on from here: from the earliest message on, the backlog would at once be too long again.
    """

    def __init__(self) -> None:
        self._data = ""
        self._ends: dict[int, int] = {}
        """The offset after the last one that is stored here, by partition at the peer."""
        self.is_given_up = False
        """Whether this node knows that the peer dropped what it kept for it, and has not subscribed again yet."""

    def of(self, data: str) -> Position:
        """Return this position; begin anew if it is not one in this data."""
        if data != self._data:
            self._data, self._ends, self.is_given_up = data, {}, False
        return self

    def note(self, batch: pa.RecordBatch) -> None:
        """Note that the messages of a delivery are stored."""
        partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
        for partition in np.unique(partitions).tolist():
            end = int(offsets[partitions == partition].max()) + 1
            self._ends[partition] = max(end, self._ends.get(partition, 0))

    def start(self, partitions: int) -> dict[str, Any]:
        """Return where a new subscription starts: one offset for all partitions, so the lowest."""
        lowest = min(self._ends.get(partition, 0) for partition in range(partitions))
        return {"start": "offset", "start_offset": lowest} if lowest else {"start": "earliest"}


class _Known(msgspec.Struct):
    config: dict[str, Any]


class _Removed(msgspec.Struct):
    subscription: str
    why: str


class _Figures(msgspec.Struct):
    removals: list[_Removed]


class _Topic(msgspec.Struct):
    stats: _Figures


def peer_terms(me: MeshNode, backlog: Backlog) -> dict[str, Any]:
    """Return the terms of the subscription of a node at a peer."""
    return {
        "peer": me.name,
        "peer_role": me.role,
        "start": "earliest",
        # One reader at a time, and what failed comes first: else an earlier message could come behind a later one.
        "assignment": "exclusive",
        "retry": {"attempts": None, "first_ms": 0, "factor": 1.0, "cap_ms": 0, "jitter": 0.0},
        "lease_ms": LEASE_MS,
        "buffer_messages": backlog.messages,
        "buffer_bytes": backlog.bytes,
    }


def subscription_of(node: str, role: str) -> str:
    """Return the name of the subscriptions of a node at its peers."""
    return SUBSCRIPTIONS[role == "leaf"] + node


async def ask_topic(session: NativeSession, topic: str) -> TopicAtNode:
    """Return what a peer says of a topic; raise `NotFound` if it has none that flows."""
    answer = await session.call(ClientRequest("GET", path("topics", topic, "mesh")))
    if not answer.ok:
        raise error_of(answer)
    return parsed(answer, TopicAtNode)


async def has_subscription(session: NativeSession, topic: str, name: str, terms: dict[str, Any]) -> bool:
    """Return whether a peer has the subscription, which gets the terms that may change.

    Raise `AlreadyExists` if it is one of another reader.
    """
    place = path("topics", topic, "subscriptions", name)
    try:
        known = await SessionCaller(session).json("PATCH", place, _Known, {field: terms[field] for field in CHANGED})
    except NotFound:
        return False
    for field in FIXED:
        if known.config.get(field) != terms[field]:
            difference = f"{field} is {known.config.get(field)!r}, not {terms[field]!r}"
            raise AlreadyExists("subscription", f"{topic}/{name}", difference)
    return True


async def ask_why_gone(session: NativeSession, topic: str, name: str) -> str:
    """Return why a peer has cut off a subscription that it does not have; empty if it has not, or was asked to delete.

    The peer remembers that over its own restarts, and this node need not remember that it had subscribed.
    """
    answer = await session.call(ClientRequest("GET", path("topics", topic)))
    if not answer.ok:
        raise error_of(answer)
    whys = [each.why for each in parsed(answer, _Topic).stats.removals if each.subscription == name]
    return whys[-1] if whys else ""


async def leave_topic(session: NativeSession, me: MeshNode, topic: str) -> None:
    """Delete the subscription of this node at a peer: the topic is not here any more."""
    answer = await session.call(
        ClientRequest("DELETE", path("topics", topic, "subscriptions", subscription_of(me.name, me.role)))
    )
    if not answer.ok and not isinstance(error_of(answer), NotFound):
        raise error_of(answer)
