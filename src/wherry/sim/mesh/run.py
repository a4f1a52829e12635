"""One run of the mesh from one seed: nodes, clients that publish and read, faults; then all heals and is checked.

Each publisher repeats a call until it is confirmed, as an idempotent producer: what it published is known exactly.
Each reader records what is stored at its node, by offset.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random

from wherry.client.link import backoff
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import LimitReached
from wherry.node.mesh.at_peer import Backlog
from wherry.node.mesh.settings import MeshSettings
from wherry.sim.mesh.check import check_mesh
from wherry.sim.mesh.line import SharedLine
from wherry.sim.mesh.node import FAULTS, MeshSimNode, url_of
from wherry.sim.mesh.plan import TOPIC, MeshPlan, draw_mesh
from wherry.sim.patch import patched
from wherry.sim.world import loop
from wherry.wire.fairness import set_fair_loop

READERS = "readers"
HEAL_S = 90.0
"""Within this time after the last fault, every node has everything."""

FULL_S = 30.0
"""Much longer than the reader of a node takes to read all that a bounded topic holds, whoever else does not."""

QUIET_LOOKS = 3


@dataclass(slots=True)
class MeshHistory:
    """What was published where, and what each node has."""

    sent: dict[str, list[str]] = field(default_factory=dict)
    """Confirmed at each node, in order."""
    stored: dict[str, dict[tuple[int, int], str]] = field(default_factory=dict)
    """At each node, by partition and offset."""
    guarantees: set[str] = field(default_factory=set)
    cut_offs: dict[str, int] = field(default_factory=dict)
    """At each node: how many subscriptions were cut off."""
    untold: list[tuple[str, str]] = field(default_factory=list)
    """Nodes that cut off a peer, and the peer, which never found out."""
    overrun: int = 0
    """The most messages that were kept for a peer that should have been cut off."""
    copies: int = 0
    """Messages that came to a node without need: it had them, or they come by another way."""
    faults: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


@dataclass(slots=True)
class MeshResult:
    """The result of a run of the mesh."""

    seed: int
    plan: MeshPlan
    violations: list[str]
    trace: str
    history: MeshHistory


class MeshRun:
    """The nodes of a run, the lines between them, and what happened."""

    def __init__(self, seed: int, plan: MeshPlan) -> None:
        self.plan = plan
        self.history = MeshHistory({name: [] for name in plan.nodes}, {name: {} for name in plan.nodes})
        self.random = Random(f"{seed}/mesh/life")
        self._cut: set[frozenset[str]] = set()
        self._names = {url_of(name): name for name in plan.nodes}
        self.is_ending = False
        self.nodes = {
            name: MeshSimNode(seed, self._settings(name), plan.weather, self._reach, plan.backlog)
            for name in plan.nodes
        }

    def _settings(self, name: str) -> MeshSettings:
        plan, hubs = self.plan, self.plan.hubs
        hub = plan.leaves.get(name)
        if hub is not None:
            known = [hub]
        elif plan.discover:
            known = [hubs[hubs.index(name) - 1]] if len(hubs) > 1 else []
        else:
            known = [other for other in hubs if other != name]
            known += [leaf for leaf, its in plan.leaves.items() if its == name]
        return MeshSettings(
            node=name,
            role="hub" if hub is None else "leaf",
            addresses=tuple(url_of(each) for each in known),
            discover=plan.discover,
            announce_s=plan.announce_s,
            backlog=Backlog(plan.backlog, 1 << 30),
        )

    def peers_of(self, name: str) -> list[str]:
        """Return the nodes that a node is connected to when all is well."""
        hubs, leaves = self.plan.hubs, self.plan.leaves
        if name in leaves:
            return [leaves[name]]
        return [*(other for other in hubs if other != name), *(leaf for leaf, hub in leaves.items() if hub == name)]

    def _reach(self, start: str, url: str) -> MeshSimNode | None:
        name = self._names[url]
        return None if frozenset((start, name)) in self._cut else self.nodes[name]

    def note(self, what: str) -> None:
        """Record an event."""
        self.history.events.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    # ----------------------------------------------------------------------------------------------------------- life

    async def live(self) -> None:
        """Run load and faults, heal everything, and wait until every node has everything."""
        for name in self.plan.nodes:
            await self.nodes[name].boot()
            await self._declare(self.nodes[name])
        if not await self._is_healed():
            self.history.faults.append("connected: the nodes did not find each other")
            return
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(self._read(name)) for name in self.plan.nodes]
            supervising = group.create_task(self._supervise())
            async with asyncio.TaskGroup() as work:
                for name in self.plan.nodes:
                    work.create_task(self._publish(name, Random(self.random.getrandbits(64))))
                work.create_task(self._break(Random(self.random.getrandbits(64))))
            self.note("all heals")
            self._cut.clear()
            if not await self._is_healed():
                self.history.faults.append("healed: some node still waits for another long after the last fault")
            await asyncio.sleep(1.0)
            self.is_ending = True
            await asyncio.wait(readers)
            supervising.cancel()
        for name, node in self.nodes.items():
            cut_off = sorted(node.peers_cut_off())
            self.history.untold += [(name, peer) for peer in cut_off if not self.nodes[peer].was_told(name)]
        for name, node in self.nodes.items():
            node.note_cut_offs()
            self.history.cut_offs[name] = len(node.cut_offs)
            self.history.copies += node.copies()
            node.kill(power=False)

    async def _declare(self, node: MeshSimNode) -> None:
        async def ask(broker: object) -> None:
            assert node.broker is not None
            bound = self.plan.messages_max
            await node.broker.create_topic(TOPIC, mesh="flow", partitions=self.plan.partitions, messages_max=bound)
            await node.broker.subscribe(TOPIC, READERS)

        await node.call(ask)

    async def _is_healed(self) -> bool:
        """Wait until no node waits for another; return False if that takes too long."""
        looks, until = 0, asyncio.get_running_loop().time() + HEAL_S
        while looks < QUIET_LOOKS:
            if asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(0.5)
            is_quiet = all(node.is_quiet(self.peers_of(name)) for name, node in self.nodes.items())
            looks = looks + 1 if is_quiet else 0
        return True

    async def _supervise(self) -> None:
        while True:
            for node in self.nodes.values():
                if node.broker is not None and node.broker.failure is not None:
                    node.kill(power=False)
                if node.broker is None:
                    await asyncio.sleep(0.2)
                    await node.boot()
                node.note_cut_offs()
                node.note_backlogs()
                self.history.overrun = max(self.history.overrun, node.overrun)
            await asyncio.sleep(0.1)

    async def _break(self, random: Random) -> None:
        """Kill nodes, cut lines for a while and lose connections, at any time of the load."""
        kinds = ["kill"] * self.plan.kills + ["cut"] * self.plan.cuts + ["lose"] * self.plan.losses
        random.shuffle(kinds)
        for kind in kinds:
            await asyncio.sleep(random.uniform(0, 2 * self.plan.seconds / (len(kinds) + 1)))
            node = self.nodes[random.choice(self.plan.nodes)]
            if kind == "kill":
                power = random.random() < 0.5
                self.note(f"{'power cut' if power else 'kill'} of {node.name}")
                node.kill(power=power)
            elif kind == "lose":
                self.note(f"a connection of {node.name} is lost")
                node.cut()
            else:
                other = self.nodes[random.choice(self.peers_of(node.name) or [node.name])]
                self.note(f"no line between {node.name} and {other.name}")
                self._cut.add(frozenset((node.name, other.name)))
                node.cut(other)
                other.cut(node)
                if random.random() < 0.5:
                    await asyncio.sleep(random.uniform(0, 3))
                    self._cut.discard(frozenset((node.name, other.name)))

    # --------------------------------------------------------------------------------------------------------- clients

    async def _publish(self, name: str, random: Random) -> None:
        """Publish, each call again until it is confirmed."""
        node, number = self.nodes[name], 0
        for _ in range(self.plan.publishes):
            await asyncio.sleep(random.uniform(0, 2 * self.plan.seconds / self.plan.publishes))
            payloads = [f"{name}/{number + row}" for row in range(random.choice((1, 1, 2, 5, 30)))]
            partition = random.randrange(self.plan.partitions)
            options = PublishOptions(producer=name, sequence=number, partition=partition)
            done = await self._confirmed(node, payloads, options)
            if done is None:
                self.history.faults.append(f"flows: {name} refused {name}/{number} for {FULL_S:.0f} s")
                return
            self.history.guarantees.add(done.mesh)
            self.history.sent[name] += payloads
            number += len(payloads)

    @staticmethod
    async def _confirmed(node: MeshSimNode, payloads: list[str], options: PublishOptions) -> Published | None:
        """Publish until it is confirmed; return None if the topic stays full although its reader reads."""
        messages, now = [each.encode() for each in payloads], asyncio.get_running_loop().time
        full_since: float | None = None
        while True:
            try:
                return await node.call(lambda broker: broker.publish(TOPIC, messages, options))
            except LimitReached:
                full_since = now() if full_since is None else full_since
                if now() - full_since > FULL_S:
                    return None
            except FAULTS:
                full_since = None
            await asyncio.sleep(0.1)

    async def _read(self, name: str) -> None:
        """Record what is stored at a node, and ack it."""
        node, stored = self.nodes[name], self.history.stored[name]

        async def some(broker: object) -> int:
            assert node.broker is not None
            consumer = await node.broker.consumer(TOPIC, READERS)
            try:
                delivery = await consumer.pull(1_000)
                for message in delivery.messages():
                    place = message.partition, message.offset
                    payload = message.payload.decode()
                    if stored.setdefault(place, payload) != payload:
                        self.history.faults.append(f"stored: {name} has two messages at {place}")
                if len(delivery):
                    await delivery.ack()
                return len(delivery)
            finally:
                await consumer.close()

        while True:
            is_last = self.is_ending
            try:
                got = await node.call(some)
            except FAULTS:
                got = 1
            if not got and is_last:
                return
            await asyncio.sleep(0.0 if got and is_last else 0.4)


def run_mesh(seed: int) -> MeshResult:
    """Run one seed to its end and check it."""
    plan = draw_mesh(Random(f"{seed}/mesh"))
    made: list[MeshRun] = []

    async def main() -> None:
        set_fair_loop(SharedLine())
        made.append(MeshRun(seed, plan))
        await made[0].live()

    with _chance_from(Random(f"{seed}/mesh/chance")):
        loop.run(main(), steps_max=5_000_000, virtual_s_max=3_600.0)
    history = made[0].history
    violations = history.faults + check_mesh(plan, history)
    trace = hashlib.blake2b(repr((history.events, history.stored)).encode(), digest_size=16).hexdigest()
    return MeshResult(seed, plan, violations, trace, history)


@contextmanager
def _chance_from(random: Random) -> Iterator[None]:
    """Draw random names and pauses from the seed, and keep the log of the nodes to itself."""
    log = logging.getLogger("wherry.mesh")
    with ExitStack() as stack:
        stack.enter_context(patched(log, "disabled", lambda _: True))
        stack.enter_context(patched(backoff, "random", lambda _: random))
        stack.enter_context(patched(secrets, "token_hex", lambda _: lambda count=16: random.randbytes(count).hex()))
        yield
