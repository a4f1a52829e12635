"""Planted bugs in the mesh of `flow` topics, in the core and in the links: see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec

from wherry.core.apply import publishes
from wherry.core.decide import flow, publishing, room, upkeep
from wherry.core.state.producers import Producers
from wherry.mesh.flow import passing
from wherry.model import ops
from wherry.node.mesh import at_peer, topic_flow
from wherry.node.mesh.mesh import NodeMesh
from wherry.node.mesh.topic_flow import TopicFlow
from wherry.sim.patch import patched


def pass_on_as_own() -> Any:
    """Pass on what a peer passed on, as if it had been published here: a loop."""
    stack = ExitStack()
    stack.enter_context(patched(publishes, "passes_on", lambda _: lambda *args, **more: True))
    stack.enter_context(patched(passing, "_origin_of", lambda _: lambda *args: None))
    return stack


def pass_on_to_hubs() -> Any:
    """Pass on to a hub what came from a hub, and take it: it comes by two ways."""
    stack = ExitStack()
    stack.enter_context(patched(publishes, "passes_on", lambda _: lambda *args, **more: True))
    stack.enter_context(patched(passing, "_is_on_its_way", lambda _: lambda me, peer, origin, came: origin != me.name))
    return stack


def store_repeats() -> Any:
    """Store what a peer passes on again after an ack was lost."""
    return patched(Producers, "next_of", lambda _: lambda self, origin: 0)


def forget_origins_at_a_restart() -> Any:
    """Keep in memory only how far each origin is."""
    ends: dict[int, dict[str, int]] = {}

    def mark(_: Any) -> Any:
        def volatile(topic: Any, entry: Any, origin: Any) -> None:
            if origin is None:
                return
            entry.ops[:] = [
                msgspec.structs.replace(op, origin=origin.place.node, from_hub=origin.role == "hub")
                if isinstance(op, ops.Publish)
                else op
                for op in entry.ops
            ]
            ends.setdefault(id(topic.producers), {})[origin.place.producer] = int(origin.offsets[-1]) + 1

        return volatile

    stack = ExitStack()
    stack.enter_context(patched(flow, "mark", mark))
    stack.enter_context(
        patched(Producers, "next_of", lambda _: lambda self, origin: ends.get(id(self), {}).get(origin, 0))
    )
    return stack


def ack_before_it_is_stored() -> Any:
    """Ack at the peer before the messages are stored here."""

    def make(_: Any) -> Any:
        async def pump(self: TopicFlow, stream: Any, source: Any) -> None:
            while (batch := await self._next(stream)) is not None:
                await stream.settle("ack", batch.leases())
                for part in passing.take(self._me, source, batch.data).parts:
                    await self._store(part)
                stream.grant(batch.count)

        return pump

    return patched(TopicFlow, "_pump", make)


def drop_the_backlog() -> Any:
    """Subscribe anew with each connection, from what is published next: the backlog is gone, and nothing says so."""

    def make(run: Any) -> Any:
        async def anew(self: TopicFlow) -> None:
            await at_peer.leave_topic(self._session, self._me, self._topic)
            await run(self)

        return anew

    stack = ExitStack()
    stack.enter_context(patched(TopicFlow, "run", make))
    stack.enter_context(patched(at_peer.Position, "start", lambda _: lambda self, partitions: {"start": "latest"}))
    return stack


def retry_later() -> Any:
    """Let what a lost connection held come again later than what is behind it."""
    return _subscribed(retry={"attempts": None, "first_ms": 1_000, "factor": 1.0, "cap_ms": 1_000, "jitter": 0.0})


def greet_nobody_again() -> Any:
    """Announce a hub at other hubs only when it connects to them."""

    def nothing(self: NodeMesh) -> None:
        return

    return patched(NodeMesh, "_greet_hubs", lambda _: nothing)


def share_a_subscription() -> Any:
    """Let two peers share a subscription at a node: each gets what the other does not."""
    stack = ExitStack()
    stack.enter_context(patched(topic_flow, "subscription_of", lambda _: lambda node, role: "mesh.peers"))
    stack.enter_context(_subscribed(peer="peers", peer_role="hub", assignment="balanced"))
    return stack


def promise_too_much() -> Any:
    """Answer a publish to a `flow` topic as one to a `safe` topic."""

    def make(decide: Any) -> Any:
        def safe(*args: Any) -> Any:
            entries, answer = decide(*args)
            answer.mesh = "safe"
            return entries, answer

        return safe

    return patched(publishing, "decide", make)


def refuse_for_a_peer() -> Any:
    """Let what only peers have not read fill a topic, so that it refuses publishes."""
    return patched(room, "without_peers", lambda _: lambda *args: None)


def cut_off_without_a_word() -> Any:
    """Take a missing subscription at a peer for one that never was."""

    async def nothing(*_: Any) -> str:
        return ""

    return patched(topic_flow, "ask_why_gone", lambda _: nothing)


def turn_an_order_round() -> Any:
    """Take the messages of an origin in the wrong order, each with the offset of another one."""

    def make(part: Any) -> Any:
        def turned(source: Any, batch: Any, place: Any, offsets: Any, rows: Any) -> Any:
            return part(source, batch, place, offsets, rows[::-1])

        return turned

    return patched(passing, "_part", make)


def cut_off_nobody() -> Any:
    """Keep everything for a peer, however far it is behind."""
    return patched(upkeep, "overrun", lambda _: lambda state, topic: iter(()))


def forward_by_a_leaf() -> Any:
    """Let a leaf pass on to hubs what it got from a hub, and let hubs take it."""

    def passes(_: Any) -> Any:
        return lambda to, origin, *, from_hub: to.peer is None or origin != to.peer

    def takes(is_on_its_way: Any) -> Any:
        def each(me: Any, peer: str, origin: str, came_from: str) -> Any:
            return peer == "leaf" or is_on_its_way(me, peer, origin, came_from)

        return each

    stack = ExitStack()
    stack.enter_context(patched(publishes, "passes_on", passes))
    stack.enter_context(patched(passing, "_is_on_its_way", takes))
    return stack


def _subscribed(**fields: Any) -> Any:
    def make(terms: Any) -> Any:
        def other(self: TopicFlow) -> Any:
            found = terms(self)
            return msgspec.structs.replace(found, create={**found.create, **fields})

        return other

    return patched(TopicFlow, "_terms", make)


MESH_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "pass on as own": (pass_on_as_own, 0, ("once", "order")),
    "pass on to hubs": (pass_on_to_hubs, 12, ("copies",)),
    "store repeats": (store_repeats, 3, ("once",)),
    "forget origins at a restart": (forget_origins_at_a_restart, 28, ("once",)),
    "ack before it is stored": (ack_before_it_is_stored, 3, ("all",)),
    "drop the backlog": (drop_the_backlog, 0, ("all",)),
    "retry later": (retry_later, 8, ("all",)),
    "greet nobody again": (greet_nobody_again, 206, ("healed",)),
    "turn an order round": (turn_an_order_round, 0, ("order",)),
    "cut off nobody": (cut_off_nobody, 2, ("bounded",)),
    "forward by a leaf": (forward_by_a_leaf, 10, ("copies",)),
    "share a subscription": (share_a_subscription, 0, ("connected",)),
    "promise too much": (promise_too_much, 0, ("answers",)),
    "refuse for a peer": (refuse_for_a_peer, 11, ("flows",)),
    "cut off without a word": (cut_off_without_a_word, 2, ("told",)),
}
"""Each bug, the first seed that shows it in the run of the mesh, and the checkers that find it."""
