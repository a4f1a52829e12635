"""Steps of the drill with tokens that have ended or were never given: no call with them may change anything.

The broker is paused past the end of a lease, and the call is the first callback after the pause, before the broker's
own timers: upkeep must run before the token is looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from wherry.broker.broker import Broker
from wherry.model.errors import StageLost, StaleLease
from wherry.sim.drill.drill import LEASE_MS, Drill, Step


def late(call: Callable[[Broker, int], Awaitable[object]]) -> Step:
    """Make a step in which the lease of a call's token ended while the broker was paused."""

    async def step(one: Drill) -> None:
        await one.publish()
        got = await one.pull()
        pause = asyncio.create_task(one.world.pause(2 * LEASE_MS / 1000))
        await asyncio.sleep(1.5 * LEASE_MS / 1000)
        await one.refused(lambda broker: call(broker, got.tokens[0]), StaleLease, "a lease that was over was taken")
        await pause
        one.expect(await one.payloads() == [b"it"], "a message whose lease ended does not come again")

    return step


def foreign(call: Callable[[Broker, int, list[int]], Awaitable[object]]) -> Step:
    """Make a step in which a call names a message under the token of another consumer's lease."""

    async def step(one: Drill) -> None:
        await one.publish(b"mine")
        mine = await one.pull()
        await one.publish(b"theirs")
        theirs = await one.pull()
        (offset,) = theirs.batch.column("offset").to_pylist()
        token = mine.tokens[0]
        await one.refused(lambda broker: call(broker, token, [offset]), StaleLease, "a foreign message was settled")
        await one.refused(lambda broker: call(broker, 1 << 60, [offset]), StaleLease, "a made-up token was taken")
        await one.ask(lambda broker: broker.renew(theirs.tokens[0]))
        await asyncio.sleep(2 * LEASE_MS / 1000)
        one.expect(sorted(await one.payloads()) == [b"mine", b"theirs"], "a message went by a foreign token")

    return step


def earlier(call: Callable[[Broker, int], Awaitable[object]]) -> Step:
    """Make a step in which a call has a token of the broker's last life, while its message is leased again."""

    async def step(one: Drill) -> None:
        await one.publish()
        before = await one.pull()
        await one.cut()
        await one.pull()
        await one.refused(lambda broker: call(broker, before.tokens[0]), StaleLease, "a token of an earlier life")

    return step


async def commit_late(one: Drill) -> None:
    """Commit a stage with an ack whose lease has ended since: nothing of the stage happens."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.stage_ack(one.step, got.tokens[0]))
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"new"]))
    pause = asyncio.create_task(one.world.pause(2 * LEASE_MS / 1000))
    await asyncio.sleep(1.5 * LEASE_MS / 1000)
    await one.refused(lambda broker: broker.commit(one.step), StaleLease, "a lease that was over was committed")
    await pause
    one.expect(await one.payloads() == [b"it"], "a commit was refused, and did something")


async def commit_next_life(one: Drill) -> None:
    """Commit a stage with an ack whose lease ended with a restart: the answer is that the stage is lost."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.stage_ack(one.step, got.tokens[0]))
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"new"]))
    await one.cut()
    await one.refused(lambda broker: broker.commit(one.step), StageLost, "half of a stage was committed")
    one.expect(await one.payloads() == [b"it"], "a commit was refused, and did something")


TOKENS: dict[str, Step] = {
    "ack late": late(lambda broker, token: broker.ack(token)),
    "nack late": late(lambda broker, token: broker.nack(token, delay_ms=0)),
    "dead letter late": late(lambda broker, token: broker.dead_letter(token)),
    "release late": late(lambda broker, token: broker.release(token)),
    "renew late": late(lambda broker, token: broker.renew(token, 600_000)),
    "stage ack late": late(lambda broker, token: broker.stage_ack("late", token)),
    "commit late": commit_late,
    "commit next life": commit_next_life,
    "ack foreign": foreign(lambda broker, token, offsets: broker.ack(token, offsets)),
    "nack foreign": foreign(lambda broker, token, offsets: broker.nack(token, offsets)),
    "dead letter foreign": foreign(lambda broker, token, offsets: broker.dead_letter(token, offsets)),
    "release foreign": foreign(lambda broker, token, offsets: broker.release(token, offsets)),
    "stage ack foreign": foreign(lambda broker, token, offsets: broker.stage_ack("foreign", token, offsets)),
    "ack earlier": earlier(lambda broker, token: broker.ack(token)),
    "renew earlier": earlier(lambda broker, token: broker.renew(token)),
}
