"""Steps of the drill that read: what a client was shown must hold after a power cut.

In each step another client has just written what is read, and it is not synced yet.
"""

from __future__ import annotations

import asyncio

import numpy as np

from wherry.broker.broker import Broker
from wherry.broker.calls import browse as browsing
from wherry.model.calls.dead import DeadFilter
from wherry.model.calls.fate import Outcome
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.where import Where
from wherry.model.errors import HistoryLost, NotFound, StaleLease
from wherry.model.schema import Message
from wherry.sim.clients.callbacks import URL
from wherry.sim.drill.drill import (
    FAR_MS,
    SUBSCRIPTION,
    Drill,
    Step,
)
from wherry.sim.drill.drill_writes import unreported_of


async def pull(one: Drill) -> None:
    """Pull a message that was just published."""
    await _publishing(one)
    got = (await one.pull(wait_ms=500)).payloads()
    await one.cut()
    one.expect(got == [b"it"] and await one.payloads() == got, "a message was handed out, and is gone")


async def pull_once(one: Drill) -> None:
    """Pull without acks: the message is not delivered again."""
    await one.ask(lambda broker: broker.subscribe(one.topic, "once", acks=False))
    await one.publish()
    got = (await one.pull("once")).payloads()
    await one.cut()
    one.expect(got == [b"it"] and await one.payloads("once") == [], "a message without acks was handed out twice")


async def pull_once_new(one: Drill) -> None:
    """Pull without acks a message that was just published: it is stored for other subscriptions."""
    await one.ask(lambda broker: broker.subscribe(one.topic, "once", acks=False))
    await _publishing(one)
    got = (await one.pull("once", wait_ms=500)).payloads()
    await one.cut()
    one.expect(got == [b"it"] and await one.payloads() == got, "a message was handed out, and is gone")


async def pull_forwarded(one: Drill) -> None:
    """Pull a transient message that was just forwarded: its dead letter does not come back."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.dead_letter(got.tokens[0]))
    await one.begin(lambda broker: broker.forward([(one.topic, DeadFilter())], [(one.topic, [b"new"], False)]))
    new = (await one.pull(wait_ms=500)).payloads()
    await one.cut()
    one.expect(new == [b"new"] and await one.dead() == [], "what took a dead letter's place was seen, and it is there")


async def pull_transient(one: Drill) -> None:
    """Pull the first transient message: its offset is not used again."""
    await one.begin(lambda broker: broker.publish(one.topic, [b"it"], PublishOptions(persistent=False)))
    got = [each.id for each in await one.pull(wait_ms=500)]
    await one.cut()
    one.expect(len(got) == 1 and await one.publish() not in got, "two messages had the same offset")


async def publish_transient(one: Drill) -> None:
    """Publish a transient message whose offset was just reserved for another one."""
    transient = PublishOptions(persistent=False)
    await one.begin(lambda broker: broker.publish(one.topic, [b"it"], transient))
    message_id = await one.publish(b"it", transient)
    await one.cut()
    one.expect(await one.publish() not in (message_id, "0-0"), "two messages had the same offset")


async def history(one: Drill) -> None:
    """Read a message in the log."""
    await _publishing(one)
    rows = await one.ask(lambda broker: _log(broker, one.topic))
    await one.cut()
    one.expect(rows == 1 and await one.ask(lambda broker: _log(broker, one.topic)) == 1, "the log showed what is gone")


async def history_hides(one: Drill) -> None:
    """Read the log without a message that was just settled."""
    await one.publish()
    await _acking(one)
    rows = await one.ask(lambda broker: _log(broker, one.topic))
    await one.cut()
    one.expect(rows == 0 and await one.ask(lambda broker: _log(broker, one.topic)) == 0, "the log hid what is there")


async def reach(one: Drill) -> None:
    """Ask how far a log reader may read."""
    await _publishing(one)
    stop = (await one.ask(lambda broker: broker.reach({one.topic: {0: 0}})))[one.topic][0]
    await one.cut()
    assert one.world.broker is not None
    end = max((extent.stop for extent in one.world.broker.extents(one.topic)), default=0)
    one.expect(stop == 1 and end >= stop, "a reader was sent beyond the end of the log")


async def reach_lost(one: Drill) -> None:
    """Ask as a log reader for a message that was just dropped: the answer is that it is lost."""
    await _dropping(one)
    await one.refused(lambda broker: broker.reach({one.topic: {0: 0}}), HistoryLost, "a message that went was reached")
    await one.cut()
    await one.refused(lambda broker: broker.reach({one.topic: {0: 0}}), HistoryLost, "what was lost is there")


async def history_lost(one: Drill) -> None:
    """Read as a log reader a message that was just dropped: the answer is that it is lost."""
    await _dropping(one)
    await one.refused(lambda broker: _window(broker, one.topic), HistoryLost, "a message that went was read")
    await one.cut()
    await one.refused(lambda broker: _window(broker, one.topic), HistoryLost, "what was lost is there")


async def fate_gone(one: Drill) -> None:
    """Ask for the fate of a message by its own id, which ended with it: the id is not known any more."""
    await one.ask(lambda broker: broker.publish(one.topic, [Message(payload=b"it", id="one")]))
    await _acking(one)
    await one.refused(lambda broker: broker.fate(one.topic, "one"), NotFound, "it was settled, and is known")
    await one.cut()
    await one.refused(lambda broker: broker.fate(one.topic, "one"), NotFound, "it was reported as gone, and is there")


async def fate(one: Drill) -> None:
    """Ask for the fate of a message that was just settled."""
    message_id = await one.publish()
    await _acking(one)
    answered = (await one.ask(lambda broker: broker.fate(one.topic, message_id))).fate
    await one.cut()
    again = (await one.ask(lambda broker: broker.fate(one.topic, message_id))).fate
    one.expect(answered == again == "settled", f"a message was reported as {answered}, and is {again}")


async def outcome(one: Drill) -> None:
    """Wait for the fate of a message that was just settled."""
    message_id = await one.publish()
    published = Published(np.array([0]), np.array([int(message_id.split("-")[1])]))
    await _acking(one)
    answered = (await one.ask(lambda broker: broker.outcome(one.topic, published, timeout_ms=0))).words()
    await one.cut()
    again = (await one.ask(lambda broker: broker.fate(one.topic, message_id))).fate
    one.expect(answered == [again] == ["settled"], f"a message was reported as {answered}, and is {again}")


async def unreported(one: Drill) -> None:
    """List the outcomes to report after a message was just settled."""
    message_id = await one.publish(b"it", PublishOptions(callback=URL))
    await _acking(one)
    outcomes: list[Outcome] = []
    for _ in range(10_000):
        if outcomes := unreported_of(one):
            break
        await asyncio.sleep(0.001)
    await one.cut()
    again = (await one.ask(lambda broker: broker.fate(one.topic, message_id))).fate
    one.expect(outcomes[0].fate == again, f"a message was reported as {outcomes[0].fate}, and is {again}")


async def on_outcome(one: Drill) -> None:
    """Wait for `on_outcome`, which is set when an outcome may be reported, and not before."""
    await one.publish(b"it", PublishOptions(callback=URL))
    got = await one.pull()
    broker = one.world.broker
    assert broker is not None
    broker.on_outcome.clear()
    await one.begin(lambda broker: broker.ack(got.tokens[0]))
    await one.ask(lambda broker: broker.on_outcome.wait())
    one.expect(len(unreported_of(one)) == 1, "it was woken, and there was nothing to report")
    await one.cut()


async def get(one: Drill) -> None:
    """Get a message."""
    await _publishing(one)
    seen = await one.is_there("0-0")
    await one.cut()
    one.expect(seen and await one.is_there("0-0"), "a message was shown, and is gone")


async def get_gone(one: Drill) -> None:
    """Get a message that was just cancelled."""
    message_id = await one.publish()
    await one.begin(lambda broker: broker.cancel(one.topic, message_id))
    seen = await one.is_there(message_id)
    await one.cut()
    one.expect(not seen and not await one.is_there(message_id), "a message was reported as gone, and is there")


async def browse(one: Drill) -> None:
    """Browse a topic."""
    await _publishing(one)
    rows = len(await one.ask(lambda broker: broker.browse(one.topic)))
    await one.cut()
    again = len(await one.ask(lambda broker: broker.browse(one.topic)))
    one.expect(rows == again == 1, f"{rows} messages were shown, {again} are there")


async def search(one: Drill) -> None:
    """Search a topic."""
    await _publishing(one)
    rows = len(await one.ask(lambda broker: broker.search(one.topic, key="a")))
    await one.cut()
    again = len(await one.ask(lambda broker: broker.search(one.topic, key="a")))
    one.expect(rows == again == 1, f"{rows} messages were found, {again} are there")


async def scheduled(one: Drill) -> None:
    """List scheduled messages."""
    due_ms = one.world.clock.wall_us() // 1000 + FAR_MS
    await one.begin(lambda broker: broker.publish(one.topic, [Message(payload=b"it", due_ms=due_ms)]))
    rows = len(await one.ask(lambda broker: broker.scheduled(one.topic, SUBSCRIPTION)))
    await one.cut()
    again = len(await one.ask(lambda broker: broker.scheduled(one.topic, SUBSCRIPTION)))
    one.expect(rows == again == 1, f"{rows} messages were listed, {again} are there")


async def dead_letters(one: Drill) -> None:
    """List a dead letter that just died."""
    await one.publish()
    got = await one.pull()
    await one.begin(lambda broker: broker.dead_letter(got.tokens[0]))
    dead = await one.dead()
    await one.cut()
    one.expect(dead == [b"it"] and await one.dead() == dead, "a dead letter was shown, and is none")


async def dead_page(one: Drill) -> None:
    """List a page of dead letters that is full, so that the next one is not read."""
    await one.publish()
    got = await one.pull()
    await one.begin(lambda broker: broker.dead_letter(got.tokens[0]))
    rows = await one.ask(lambda broker: _dead_page(broker, one.topic))
    await one.cut()
    one.expect(rows == 1 and await one.dead() == [b"it"], "a dead letter was shown, and is none")


async def no_dead_letters(one: Drill) -> None:
    """List no dead letter, since the last one was just redriven."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.dead_letter(got.tokens[0]))
    await one.begin(lambda broker: broker.redrive(one.topic))
    dead = await one.dead()
    await one.cut()
    one.expect(not dead and not await one.dead(), "no dead letter was shown, and there is one")


async def state_of(one: Drill) -> None:
    """Get the state of a message for a subscription after it was delayed."""
    message_id = await one.publish()
    got = await one.pull()
    await one.begin(lambda broker: broker.nack(got.tokens[0], delay_ms=FAR_MS))
    answered = await one.ask(lambda broker: broker.state_of(one.topic, SUBSCRIPTION, message_id))
    await one.cut()
    again = await one.ask(lambda broker: broker.state_of(one.topic, SUBSCRIPTION, message_id))
    one.expect(answered == again == "scheduled", f"a message was reported as {answered}, and is {again}")


async def checkpoint(one: Drill) -> None:
    """Write a checkpoint while earlier entries are not synced: it must not be ahead of the journal."""
    for _ in range(10):
        await one.begin(lambda broker: broker.submit(one.topic, [b"it"], PublishOptions()))
    await one.ask(lambda broker: broker.checkpoint())
    await one.cut()
    one.expect(await one.payloads() == [b"it"] * 10, "a checkpoint holds what the journal has not")


async def barrier(one: Drill) -> None:
    """Pull from a broker that has just started: its tokens must not be those of the next life."""
    await one.publish()
    await one.cut()
    got = await one.pull()
    await one.cut()
    again = await one.pull()
    one.expect(got.tokens != again.tokens, "two lives gave the same token")
    await one.refused(lambda broker: broker.ack(got.tokens[0]), StaleLease, "a token of an earlier life was taken")


async def _publishing(one: Drill) -> None:
    await one.begin(lambda broker: broker.publish(one.topic, [Message(payload=b"it", key="a")]))


async def _acking(one: Drill) -> None:
    got = await one.pull()
    await one.begin(lambda broker: broker.ack(got.tokens[0]))


async def _dropping(one: Drill) -> None:
    one.topic = f"{one.topic}-full"
    await one.ask(lambda broker: broker.create_topic(one.topic, messages_max=1, overflow="drop-oldest"))
    await one.ask(lambda broker: broker.subscribe(one.topic, SUBSCRIPTION))
    await one.publish()
    await _publishing(one)


async def _window(broker: Broker, topic: str) -> object:
    return await broker.window(topic, 0, 0, 1, strict=True)


async def _log(broker: Broker, topic: str) -> int:
    view = await broker.window(topic, 0, 0, 1)
    return sum(batch.num_rows for batch, _ in view.batches(broker.read_file, ["offset"], Where()))


async def _dead_page(broker: Broker, topic: str) -> int:
    page = await browsing.dead_page(broker.shard, broker.shard.state.topic(topic), DeadFilter(limit=1))
    return int(page.batch.num_rows)


READS: dict[str, Step] = {
    "pull": pull,
    "pull once": pull_once,
    "pull once new": pull_once_new,
    "pull forwarded": pull_forwarded,
    "pull transient": pull_transient,
    "publish transient": publish_transient,
    "history": history,
    "history hides": history_hides,
    "reach": reach,
    "reach lost": reach_lost,
    "history lost": history_lost,
    "fate gone": fate_gone,
    "fate": fate,
    "outcome": outcome,
    "unreported": unreported,
    "on outcome": on_outcome,
    "get": get,
    "get gone": get_gone,
    "browse": browse,
    "search": search,
    "scheduled": scheduled,
    "dead letters": dead_letters,
    "dead page": dead_page,
    "no dead letters": no_dead_letters,
    "state of": state_of,
    "checkpoint": checkpoint,
    "barrier": barrier,
}
