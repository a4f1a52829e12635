"""One run from one seed: clients and faults, then a restart without faults, a drain of all topics, and the checks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random

from wherry.broker.broker import Broker
from wherry.broker.calls import log as broker_log
from wherry.broker.calls import settle
from wherry.broker.upkeep import backfill
from wherry.core.decide import leasing, publishing, span, upkeep
from wherry.core.index import directory
from wherry.journal.bodies import merged
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import StaleLease, WherryError
from wherry.sim.checkers.checkers import check_all
from wherry.sim.checkers.routes import check_routes
from wherry.sim.clients.aftermath import aftermath
from wherry.sim.clients.callbacks import OutcomeClient
from wherry.sim.clients.consumers import Receiver
from wherry.sim.clients.loggers import LogClient
from wherry.sim.clients.operators import Nemesis, Operator
from wherry.sim.clients.producers import TopicProducer, name_of
from wherry.sim.clients.route_clients import RouteOperator, RouteProducer, set_up
from wherry.sim.history import LOG, Buried, History, Seen
from wherry.sim.patch import patched
from wherry.sim.plan import RoutePlan, RunPlan, draw
from wherry.sim.world import loop
from wherry.sim.world.rot import rot
from wherry.sim.world.world import LOST, World

DRAIN_ROUNDS = 400
QUIET_S = 900.0
"""Longer than any delay in a run: after so long a wait no message may be scheduled any more."""


SMALL: tuple[tuple[object, str, int], ...] = (
    (backfill, "BLOCK", 5),
    (broker_log, "WINDOW", 12),
    (span, "ADVANCE_STEP", 7),
    (publishing, "TRANSIENT_RESERVE", 64),
    (settle, "PURGE_STEP", 3),
    (leasing, "FEW_MAX", 2),
    (merged, "LEAST", 2),
    (merged, "TOGETHER_MIN", 2),
    (directory, "PART_ROWS", 4),
    (directory, "OPEN_MIN", 2),
    (upkeep, "EXPIRE_STEP", 3),
)
"""Bounds of some runs: so small that look-ups, settles, reservations and parts of directories cross their edges."""


@dataclass(slots=True)
class Result:
    """The result of a run."""

    seed: int
    plan: RunPlan
    violations: list[str]
    trace: str
    history: History
    route_history: History


def run(seed: int, seen: Seen | None = None) -> Result:
    """Run one seed to its end and check it; its histories are in `seen` from the beginning."""
    random = Random(f"{seed}/plan")
    plan = draw(random)
    worlds: list[World] = []

    async def main() -> None:
        world = World(seed, plan)
        worlds.append(world)
        if seen is not None:
            seen["run"] = (world.history, world.route_history)
        await _live(world, Random(f"{seed}/life"))
        await rot(world, Random(f"{seed}/rot"))

    racing = Random(f"{seed}/racing") if plan.racing else None
    with ExitStack() as stack:
        for owner, name, value in SMALL if plan.small else ():
            stack.enter_context(patched(owner, name, partial(_instead, value)))
        loop.run(main(), random=racing, steps_max=3_000_000, virtual_s_max=86_400.0)
    world = worlds[0]
    violations = check_all(world.history, plan) + check_routes(world.route_history, plan)
    return Result(seed, plan, violations, world.trace(), world.history, world.route_history)


def _instead(value: int, _: int) -> int:
    return value


async def _live(world: World, random: Random) -> None:
    await world.boot()
    await _set_up(world)
    nemesis = Nemesis(world, random)
    receivers = [
        Receiver(world, f"{config.name}-{number}", config, Random(random.getrandbits(64)), world.history)
        for config in world.plan.subscriptions
        for number in range(world.plan.consumers)
    ]
    producers = [
        TopicProducer(world, f"p{number}", Random(random.getrandbits(64))) for number in range(world.plan.producers)
    ]
    operator, outcome_client = Operator(world, Random(random.getrandbits(64))), OutcomeClient(world, world.random)
    log = _log_reader(world)
    routers, route_producers = _routers(world)
    helpers = [
        nemesis.run(),
        operator.run(),
        outcome_client.run(),
        _supervise(world),
        *(each.run() for each in routers),
    ]
    helpers += [] if log is None else [log.run(), log.watch()]
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(work) for work in (*helpers, *(each.run() for each in receivers))]
        async with asyncio.TaskGroup() as work:
            for producer in producers:
                work.create_task(producer.run(world.plan.publishes))
            for route_producer in route_producers:
                work.create_task(route_producer.run())
        await asyncio.sleep(world.plan.seconds / 4)
        world.ending = True
        nemesis.heal()
        await asyncio.sleep(2)
        for task in others:
            task.cancel()
    await _rest(world, log)


def _log_reader(world: World) -> LogClient | None:
    for topic in world.plan.topics:
        if topic.name == world.plan.logged:
            return LogClient(world, topic, Random(f"{world.seed}/log"))
    return None


def _routers(world: World) -> tuple[list[Receiver | RouteOperator], list[RouteProducer]]:
    """Return the clients of routes: those that work until the end of the run, and the producers."""
    route_plan, random = world.plan.route_plan, Random(f"{world.seed}/ways")
    if route_plan is None:
        return [], []
    receivers = [
        Receiver(
            world, f"{config.topic}-{config.name}-{number}", config, Random(random.getrandbits(64)), world.route_history
        )
        for config, count in zip(route_plan.subscriptions, route_plan.consumers, strict=True)
        for number in range(count)
    ]
    producers = [
        RouteProducer(world, route_plan, f"r{n}", Random(random.getrandbits(64))) for n in range(route_plan.producers)
    ]
    operators = [
        RouteOperator(
            world,
            route_plan,
            Random(random.getrandbits(64)),
            RouteProducer(world, route_plan, f"o{number}", Random(random.getrandbits(64))),
        )
        for number in range(route_plan.operators)
    ]
    return [*receivers, *operators], producers


async def _supervise(world: World) -> None:
    """Start the broker again whenever it is down."""
    while True:
        if world.broker is None and not world.closing:
            await world.boot()
        await asyncio.sleep(0.05)


async def _set_up(world: World) -> None:
    for topic in world.plan.topics:
        await world.call(lambda broker, topic=topic: broker.create_topic(topic))  # type: ignore[misc]
    for config in world.plan.subscriptions:
        await world.call(lambda broker, config=config: broker.subscribe(config))  # type: ignore[misc]
    if (logged := world.plan.logged) is not None:
        await world.call(lambda broker: broker.subscribe(Subscription(topic=logged, name=LOG)))
    if world.plan.route_plan is not None:
        await set_up(world, world.plan.route_plan)


async def _rest(world: World, log: LogClient | None) -> None:
    """Restart once more, then drain every subscription and list the dead letters."""
    if world.broker is None:
        await world.boot()
    world.end_life(power=True)
    await world.boot()
    topics = world.plan.topics
    for config in world.plan.subscriptions:
        await _drain(world, Receiver(world, f"{config.name}-last", config, Random(0), world.history))
    if log is not None:
        await log.finish()
    await world.call(lambda broker: _list_dead(topics, world.history, broker))
    await OutcomeClient(world, world.random).finish()
    world.history.faults += await world.call(lambda broker: _leftovers(topics, broker))
    if world.plan.route_plan is not None:
        await _rest_of_routes(world, world.plan.route_plan)
    world.digest()
    await aftermath(world)


async def _rest_of_routes(world: World, route_plan: RoutePlan) -> None:
    for config in route_plan.subscriptions:
        await _drain(
            world, Receiver(world, f"{config.topic}-{config.name}-last", config, Random(0), world.route_history)
        )
    await world.call(lambda broker: _list_dead(route_plan.topics, world.route_history, broker))
    world.history.faults += await world.call(lambda broker: _leftovers(route_plan.topics, broker))
    world.route_history.dropped = await world.call(lambda broker: _dropped(route_plan.topics, broker))


async def _drain(world: World, receiver: Receiver) -> None:
    quiet = False
    for _ in range(DRAIN_ROUNDS):
        try:
            got = await receiver.pull(500, wait_ms=0)
            if got is not None and len(got):
                quiet = False
                receiver.history.remaining += [(receiver.subscription, name_of(m.payload)) for m in got]
                if receiver.config.acks:
                    await receiver.settle("ack", got, None)
            elif quiet:
                return
            else:
                quiet = True
                await asyncio.sleep(QUIET_S)
        except (*LOST, StaleLease) as fault:
            world.history.faults.append(f"drain: {type(fault).__name__}: {fault}")
            return
    world.history.faults.append(f"drain: {receiver.subscription} never became empty")


async def _list_dead(topics: Sequence[Topic], history: History, broker: Broker) -> None:
    for topic in topics:
        for row in (await broker.dead_letters(topic.name)).to_pylist():
            history.buried.append(
                Buried(name_of(row["payload"]), topic.name, row["subscription"], row["reason"], row["attempts"])
            )


async def _dropped(topics: Sequence[Topic], broker: Broker) -> dict[str, int]:
    return {topic.name: broker.stats(topic.name).counters.get("dropped", 0) for topic in topics}


async def _leftovers(topics: Sequence[Topic], broker: Broker) -> list[str]:
    """Return the statistics that are wrong after a drain: no message may be left in a subscription or a topic."""
    faults = []
    for topic in topics:
        try:
            stats = broker.stats(topic.name)
        except WherryError as fault:
            faults.append(f"stats: {fault}")
            continue
        faults += [
            f"leftover: {topic.name}/{each.name} counts {each.ready} ready, {each.leased} leased, {each.lag} behind"
            for each in stats.subscriptions
            if each.ready or each.leased or each.scheduled or each.lag
        ]
        if stats.messages:
            faults.append(f"leftover: {topic.name} still counts {stats.messages} messages against its bounds")
    return faults
