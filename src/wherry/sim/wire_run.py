"""One run over wires from one seed: clients of AMQP and STOMP, faults, then a restart, a drain and the checks.

A second run of the same kind has clients of the native wire among them, and publishers over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from wherry.client.native import rows
from wherry.model.errors import WherryError
from wherry.sim.checkers.wires import check_wires
from wherry.sim.clients.amqp_link import AmqpLink
from wherry.sim.clients.consumers import Receiver
from wherry.sim.clients.links import Gone
from wherry.sim.clients.native.users import ClientPublisher, NativeConsumer
from wherry.sim.clients.operators import Nemesis
from wherry.sim.clients.queue_users import QueueConsumer, QueueIdler, QueuePublisher
from wherry.sim.history import History, Seen
from wherry.sim.patch import patched
from wherry.sim.wire_plan import DEAD, QUEUES, SOON, SOON_MS, Wire, WirePlan, draw_native, draw_wires, with_soon
from wherry.sim.world import loop
from wherry.sim.world.wires import WireWorld
from wherry.sim.world.world import LOST
from wherry.wire import arrow_stream, partial_body
from wherry.wire.native import delivering
from wherry.wire.native.codec import reader

T = TypeVar("T")

DRAIN_ROUNDS = 60
QUIET_S = 11.0
"""Longer than any wait of the queueing layer before it tries again."""

EXPIRY_ROUNDS, EXPIRY_ROUND_S = 30, 11.0
"""How often the end of a run looks whether all has expired, and how long it waits: several jumps of the clock."""

PARTED_S = 3.0
"""By then the broker has noticed that its clients are gone."""

LOGS = ("wherry.amqp", "wherry.stomp", "wherry.queueing", "wherry.http", "wherry.native")

SMALL: tuple[tuple[object, str, int], ...] = (
    (delivering, "ARROW_ROWS", 4),
    (rows, "ROWS_FEW", 2),
    (arrow_stream, "WHOLE_BYTES", 1_000),
    (reader, "LARGE_BYTES", 400),
    (partial_body, "FIRST_BYTES", 100),
)
"""Bounds of runs with the native wire: so small that a few messages are sent as Arrow, read to memory of their own,
and decoded in a thread."""

THREAD_S = 0.02
"""How long a thread may take, at most."""


@dataclass(slots=True)
class WireResult:
    """The result of a run over wires."""

    seed: int
    plan: WirePlan
    violations: list[str]
    trace: str
    history: History


def run_wires(seed: int, seen: Seen | None = None) -> WireResult:
    """Run one seed to its end and check it; its histories are in `seen` from the beginning."""
    plan = with_soon(draw_wires(Random(f"{seed}/wires")), Random(f"{seed}/soon"))
    return _run(seed, "wires", plan, seen)


def run_native(seed: int, seen: Seen | None = None) -> WireResult:
    """Run one seed with clients of the native wire beside those of AMQP and STOMP."""
    with ExitStack() as stack:
        for owner, name, value in SMALL:
            stack.enter_context(patched(owner, name, partial(_instead, value)))
        stack.enter_context(_threads_from(Random(f"{seed}/threads")))
        return _run(seed, "native", draw_native(Random(f"{seed}/native")), seen)


def _instead(value: int, _: int) -> int:
    return value


def _threads_from(random: Random) -> AbstractContextManager[None]:
    """Let work for a thread be done in the loop, after a while."""

    async def later(work: Callable[..., T], *args: object) -> T:
        await asyncio.sleep(random.uniform(0, THREAD_S))
        return work(*args)

    return patched(asyncio, "to_thread", lambda _: later)


def _run(seed: int, part: str, plan: WirePlan, seen: Seen | None) -> WireResult:
    worlds: list[WireWorld] = []

    async def main() -> None:
        world = WireWorld(seed, plan.world, plan.weather, native=plan.native)
        worlds.append(world)
        if seen is not None:
            seen[part] = (world.history, world.wire_history)
        checker.world = world
        await _live(world, plan, Random(f"{seed}/{part}/life"))
        checker.world = None

    checker = _LogChecker()
    racing = Random(f"{seed}/{part}/racing") if plan.world.racing else None
    with _names_from(Random(f"{seed}/names")), _checking_logs(checker):
        loop.run(main(), random=racing, steps_max=500_000, virtual_s_max=3_600.0)
    world = worlds[0]
    violations = world.history.faults + check_wires(world.wire_history, plan.world)
    return WireResult(seed, plan, violations, world.trace(), world.wire_history)


@contextmanager
def _names_from(random: Random) -> Iterator[None]:
    """Draw tokens and random names from the seed."""

    def hexadecimal(count: int | None = None) -> str:
        return random.randbytes(count or 16).hex()

    with (
        patched(secrets, "token_hex", lambda _: hexadecimal),
        patched(secrets, "token_urlsafe", lambda _: hexadecimal),
    ):
        yield


class _LogChecker(logging.Handler):
    """Reads the log of the wires: an error in it is a fault of the broker, even if no client notices."""

    world: WireWorld | None = None
    """None once the run has ended: code of dead processes may still log."""

    def emit(self, record: logging.LogRecord) -> None:
        world, why = self.world, str(getattr(record, "why", ""))
        if world is None:
            return
        if record.levelno >= logging.ERROR:
            world.wire_history.faults.append(
                f"no_faults_logged: {record.getMessage()}: {record.exc_info and record.exc_info[1]!r}"
            )
        elif why.startswith(("no heart-beat", "no heartbeat")) and world.paused_until < world.now() - 6:
            world.wire_history.faults.append(f"beats_heard: a client was cut off at {world.now():.3f}: {why}")
        elif record.name == "wherry.native" and why == "protocol":
            world.wire_history.faults.append(f"rules_kept: {record.getMessage()}: {getattr(record, 'detail', '')}")


@contextmanager
def _checking_logs(checker: _LogChecker) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(checker)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(checker)
            logger.setLevel(level)
            logger.propagate = propagate


async def _live(world: WireWorld, plan: WirePlan, random: Random) -> None:
    await world.boot()
    await _declare(world, plan)
    nemesis = Nemesis(world, Random(random.getrandbits(64)))
    consumers = [
        _consumer(wire)(world, f"c{number}", wire, Random(random.getrandbits(64)), queues=queues)
        for number, (wire, queues) in enumerate(plan.consumers)
    ]
    publishers = [
        _publisher(wire)(world, f"p{number}", wire, Random(random.getrandbits(64)), left=plan.publishes)
        for number, wire in enumerate(plan.publishers)
    ]
    if plan.soon:
        own = Random(random.getrandbits(64))
        publishers.append(QueuePublisher(world, "t0", "amqp", own, left=plan.soon, queues=(SOON,), transacts=0.0))
    idler = QueueIdler(world, "i0", plan.idle, Random(random.getrandbits(64)))
    others = [nemesis.run(), idler.run(), _cut(world, plan, Random(random.getrandbits(64))), world.supervise()]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in (*others, *(each.run() for each in consumers))]
        async with asyncio.TaskGroup() as work:
            for publisher in publishers:
                work.create_task(publisher.run())
        await asyncio.sleep(plan.world.seconds / 2)
        world.ending = True
        nemesis.heal()
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
    await asyncio.sleep(PARTED_S)
    await _rest(world, plan)


def _consumer(wire: Wire) -> type[QueueConsumer | NativeConsumer]:
    return NativeConsumer if wire == "native" else QueueConsumer


def _publisher(wire: Wire) -> type[QueuePublisher | ClientPublisher]:
    return ClientPublisher if wire in ("native", "http") else QueuePublisher


async def _declare(world: WireWorld, plan: WirePlan) -> None:
    while True:
        link = AmqpLink(world, "setup")
        try:
            await link.connect()
            await link.declare(DEAD, {})
            to_dead: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
            for queue in QUEUES[:-1]:
                await link.declare(queue, to_dead)
            if plan.soon:
                await link.declare(SOON, {**to_dead, "x-message-ttl": SOON_MS})
            await link.close()
            return
        except Gone:
            await world.boot()


async def _cut(world: WireWorld, plan: WirePlan, random: Random) -> None:
    """Cut a connection now and then."""
    while plan.cuts and not world.ending:
        await asyncio.sleep(random.expovariate(plan.cuts))
        world.acted("network", "cut a connection")
        world.network.cut_one()


async def _check_leases(world: WireWorld) -> None:
    """Check that no message is leased once no client is connected."""
    if world.broker is None:
        return
    for queue in QUEUES:
        stats = world.broker.stats(queue)
        held = sum(each.leased for each in stats.subscriptions)
        if held and world.broker.failure is None:
            world.wire_history.faults.append(
                f"nothing_kept: nobody is connected, and {held} messages of {queue} are held"
            )


async def _all_expired(world: WireWorld) -> None:
    """Wait until what was published to `SOON` has expired: later than its client meant, if the clock was set back."""
    for _ in range(EXPIRY_ROUNDS):
        if world.broker is None or world.broker.stats(SOON).messages == 0:
            return
        await asyncio.sleep(EXPIRY_ROUND_S)


async def _rest(world: WireWorld, plan: WirePlan) -> None:
    """Restart once more, then drain all queues until they stay empty."""
    await _check_leases(world)
    if world.broker is None:
        await world.boot()
    world.end_life(power=True)
    await world.boot()
    if plan.soon:
        await _all_expired(world)
    receivers = [
        Receiver(world, f"{config.topic}-last", config, Random(0), world.wire_history)
        for config in world.plan.subscriptions
    ]
    quiet = 0
    for _ in range(DRAIN_ROUNDS):
        try:
            found = [await _drained(receiver) for receiver in receivers]
        except (*LOST, WherryError) as fault:
            world.wire_history.faults.append(f"drain: {type(fault).__name__}: {fault}")
            return
        quiet = 0 if any(found) else quiet + 1
        if quiet == 2:
            world.digest()
            return
        if quiet:
            await asyncio.sleep(QUIET_S)
    world.wire_history.faults.append("drain: the queues never became empty")


async def _drained(receiver: Receiver) -> int:
    got = await receiver.pull(500, wait_ms=0)
    if got is None or not len(got):
        return 0
    await receiver.settle("ack", got, None)
    return len(got)
