"""Steps of the drill that write: what was answered must hold after a power cut."""

from __future__ import annotations

import asyncio

from wherry.broker.broker import Broker
from wherry.model.calls.dead import DeadFilter
from wherry.model.calls.fate import Outcome
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import DuplicateId, NotFound, StageLost, WherryError
from wherry.model.schema import Message
from wherry.sim.clients.callbacks import URL
from wherry.sim.drill.drill import (
    FAR_MS,
    SUBSCRIPTION,
    Drill,
    Step,
)
from wherry.sim.drill.drill_catalog import route_of


async def publish(one: Drill) -> None:
    """Publish."""
    message_id = await one.publish()
    await one.cut()
    one.expect(await one.is_there(message_id), "a message that was confirmed is gone")


class _LonePublish:
    """A publish as the native wire gives it to the gathering: alone in its turn."""

    payload = b"it"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.position = self._offset = 0

    def gather(self) -> None:
        """Fail: it has no company, and its topic is plain."""
        self.answer.set_exception(AssertionError("a lone publish was gathered"))

    def placed(self, position: int, offset: int) -> _LonePublish:
        """Note where the message is."""
        self.position, self._offset = position, offset
        return self

    def refused(self, fault: WherryError) -> None:
        """Answer with the reason."""
        self.answer.set_exception(fault)

    def report(self, fault: WherryError | None) -> None:
        """Answer with the id of the message, or with the reason."""
        if fault is not None:
            self.refused(fault)
        else:
            self.answer.set_result(f"0-{self._offset}")


async def publish_lone(one: Drill) -> None:
    """Publish one message that is alone in its turn."""

    async def lone(broker: Broker) -> str:
        asked = _LonePublish(one.topic)
        one.expect(broker.gathering.add_lone(asked), "something else was being published")
        return await asked.answer

    await one.publish()  # a topic is plain from its first message on
    message_id = await one.ask(lone)
    await one.cut()
    one.expect(await one.is_there(message_id), "a message that was confirmed is gone")


async def publish_batch(one: Drill) -> None:
    """Publish several messages, which are a batch already and are not gathered."""
    published = await one.ask(lambda broker: broker.publish(one.topic, [b"it", b"too"]))
    await one.cut()
    for message_id in published.ids():
        one.expect(await one.is_there(message_id), "a message that was confirmed is gone")


async def repeat(one: Drill) -> None:
    """Repeat a publish whose first call is not answered yet."""
    call = PublishOptions(producer="somebody", sequence=0)
    await one.begin(lambda broker: broker.publish(one.topic, [b"it"], call))
    message_id = await one.publish(b"it", call)
    await one.cut()
    one.expect(await one.is_there(message_id), "a message whose repeat was confirmed is gone")


async def submit(one: Drill) -> None:
    """Submit several publishes in one turn and wait for all of them; one of them repeats another."""
    call = PublishOptions(producer="somebody", sequence=0)
    _, first = await one.ask(lambda broker: broker.submit(one.topic, [b"it"], call))
    position, again = await one.ask(lambda broker: broker.submit(one.topic, [b"it"], call))
    await one.ask(lambda broker: broker.stored(position))
    await one.cut()
    for answer in (first, again):
        one.expect(
            not isinstance(answer, Exception) and await one.is_there(answer.ids()[0]), "what was submitted is gone"
        )


async def submit_repeat(one: Drill) -> None:
    """Submit a repeat alone in its turn."""
    call = PublishOptions(producer="somebody", sequence=0)
    await one.begin(lambda broker: broker.publish(one.topic, [b"it"], call))
    position, answer = await one.ask(lambda broker: broker.submit(one.topic, [b"it"], call))
    await one.ask(lambda broker: broker.stored(position))
    await one.cut()
    one.expect(
        not isinstance(answer, Exception) and await one.is_there(answer.ids()[0]), "what was submitted again is gone"
    )


async def publish_route(one: Drill) -> None:
    """Publish through a route."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    placed = await one.ask(lambda broker: broker.publish_route(one.topic, [b"it"]))
    await one.cut()
    one.expect(await one.is_there(placed[one.topic].ids()[0]), "a message that was routed is gone")


async def stage(one: Drill) -> None:
    """Stage."""
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"it"]))
    await one.cut()
    await one.ask(lambda broker: broker.commit(one.step))


async def abort(one: Drill) -> None:
    """Abort."""
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"it"]))
    await one.ask(lambda broker: broker.abort(one.step))
    await one.cut()
    await one.refused(lambda broker: broker.commit(one.step), NotFound, "a stage that was aborted is committed")


async def commit(one: Drill) -> None:
    """Commit a publish and an ack."""
    await one.publish(b"old")
    got = await one.pull()
    await one.ask(lambda broker: broker.stage_ack(one.step, got.tokens[0]))
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"new"]))
    await one.ask(lambda broker: broker.commit(one.step))
    await one.cut()
    one.expect(await one.payloads() == [b"new"], "a commit was confirmed, and undone")


async def commit_again(one: Drill) -> None:
    """Repeat a commit whose first call is not answered yet."""
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"it"]))
    await one.begin(lambda broker: broker.commit(one.step))
    await one.ask(lambda broker: broker.commit(one.step))
    await one.cut()
    one.expect(await one.payloads() == [b"it"], "a commit that was confirmed again is undone")


async def stage_ack(one: Drill) -> None:
    """Stage an ack: a restart ends its lease, and the commit must report that, not that there is no stage."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.stage_ack(one.step, got.tokens[0]))
    await one.cut()
    await one.refused(lambda broker: broker.commit(one.step), StageLost, "a stage that was confirmed is not known")


async def stage_ack_more(one: Drill) -> None:
    """Stage a second ack under a key whose first is not answered yet."""
    await one.publish()
    first = await one.pull()
    await one.publish()
    second = await one.pull()
    await one.begin(lambda broker: broker.stage_ack(one.step, first.tokens[0]))
    await one.ask(lambda broker: broker.stage_ack(one.step, second.tokens[0]))
    await one.cut()
    await one.refused(lambda broker: broker.commit(one.step), StageLost, "a stage that was confirmed is not known")


async def ack(one: Drill) -> None:
    """Ack."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.ack(got.tokens[0]))
    await one.cut()
    one.expect(await one.payloads() == [], "a message that was acked came again")


async def nack(one: Drill) -> None:
    """Nack with a delay."""
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.nack(got.tokens[0], delay_ms=FAR_MS))
    await one.cut()
    one.expect(await one.payloads() == [], "a message came again long before its delay was over")


async def dead_letter(one: Drill) -> None:
    """Dead-letter."""
    await _die(one)
    await one.cut()
    one.expect(await one.payloads() == [], "a dead letter came again")
    one.expect(await one.dead() == [b"it"], "a dead letter is gone")


async def purge(one: Drill) -> None:
    """Purge."""
    await one.publish()
    await one.ask(lambda broker: broker.purge(one.topic, SUBSCRIPTION))
    await one.cut()
    one.expect(await one.payloads() == [], "what was purged came again")


async def purge_again(one: Drill) -> None:
    """Purge what another purge has just taken."""
    await one.publish()
    await one.begin(lambda broker: broker.purge(one.topic, SUBSCRIPTION))
    await one.ask(lambda broker: broker.purge(one.topic, SUBSCRIPTION))
    await one.cut()
    one.expect(await one.payloads() == [], "a purge was done, and what waited before it came")


async def redrive(one: Drill) -> None:
    """Redrive."""
    await _die(one)
    await one.ask(lambda broker: broker.redrive(one.topic))
    await one.cut()
    one.expect(await one.dead() == [], "what was redriven is dead")
    one.expect(await one.payloads() == [b"it"], "what was redriven does not come")


async def redrive_again(one: Drill) -> None:
    """Redrive what another redrive has just taken."""
    await _die(one)
    await one.begin(lambda broker: broker.redrive(one.topic))
    await one.ask(lambda broker: broker.redrive(one.topic))
    await one.cut()
    one.expect(await one.dead() == [], "a redrive was done, and what was dead before it is dead")


async def forward(one: Drill) -> None:
    """Forward a dead letter."""
    await _die(one)
    await one.ask(lambda broker: broker.forward([(one.topic, DeadFilter())], [(one.topic, [b"new"], True)]))
    await one.cut()
    one.expect(await one.dead() == [], "what was forwarded is dead")
    one.expect(await one.payloads() == [b"new"], "what was forwarded does not come")


async def discard(one: Drill) -> None:
    """Discard a dead letter."""
    await _die(one)
    await one.ask(lambda broker: broker.discard(one.topic, DeadFilter()))
    await one.cut()
    one.expect(await one.dead() == [], "a dead letter that was thrown away is there")


async def cancel(one: Drill) -> None:
    """Cancel."""
    message_id = await one.publish()
    await one.ask(lambda broker: broker.cancel(one.topic, message_id))
    await one.cut()
    one.expect(await one.payloads() == [], "a message that was cancelled came")


async def amend(one: Drill) -> None:
    """Amend the due time."""
    message_id = await one.publish()
    due_ms = one.world.clock.wall_us() // 1000 + FAR_MS
    await one.ask(lambda broker: broker.amend(one.topic, message_id, due_ms=due_ms))
    await one.cut()
    one.expect(await one.payloads() == [], "a message that was put off came")


async def reported(one: Drill) -> None:
    """Report an outcome."""
    await one.publish(b"it", PublishOptions(callback=URL))
    got = await one.pull()
    await one.ask(lambda broker: broker.ack(got.tokens[0]))
    outcomes = unreported_of(one)
    await one.ask(lambda broker: broker.reported(outcomes))
    await one.cut()
    one.expect(len(outcomes) == 1 and not unreported_of(one), "what was reported is to be reported again")


async def advance(one: Drill) -> None:
    """Advance a log reader."""
    await one.publish()
    await one.ask(lambda broker: broker.advance(one.topic, SUBSCRIPTION, {0: 1}))
    await one.cut()
    one.expect(await one.payloads() == [], "what a subscription advanced over came")


async def advance_again(one: Drill) -> None:
    """Advance to a position that another client has just reported."""
    await one.publish()
    await one.begin(lambda broker: broker.advance(one.topic, SUBSCRIPTION, {0: 1}))
    await one.ask(lambda broker: broker.advance(one.topic, SUBSCRIPTION, {0: 1}))
    await one.cut()
    one.expect(await one.payloads() == [], "what a subscription advanced over came")


async def duplicate(one: Drill) -> None:
    """Publish an id whose first publish is not answered yet: the refusal promises that the first one is stored."""
    await one.begin(lambda broker: broker.publish(one.topic, [Message(payload=b"it", id="one")]))
    again = [Message(payload=b"it", id="one")]
    await one.refused(lambda broker: broker.publish(one.topic, again), DuplicateId, "an id was taken twice")
    await one.cut()
    one.expect(await one.is_there("one"), "an id was reported as taken, and its message is gone")


async def submit_duplicate(one: Drill) -> None:
    """Submit such a duplicate alone in its turn."""
    await one.begin(lambda broker: broker.publish(one.topic, [Message(payload=b"it", id="one")]))
    again = [Message(payload=b"it", id="one")]
    position, answer = await one.ask(lambda broker: broker.submit(one.topic, again, PublishOptions()))
    await one.ask(lambda broker: broker.stored(position))
    await one.cut()
    one.expect(isinstance(answer, DuplicateId), "an id was taken twice")
    one.expect(await one.is_there("one"), "an id was reported as taken, and its message is gone")


async def cancel_again(one: Drill) -> None:
    """Cancel a message that was just cancelled: the answer is that there is no such message."""
    message_id = await one.publish()
    await one.begin(lambda broker: broker.cancel(one.topic, message_id))
    await one.refused(lambda broker: broker.cancel(one.topic, message_id), NotFound, "it was cancelled twice")
    await one.cut()
    one.expect(await one.payloads() == [], "a message was reported as gone, and came")


async def commit_of_nothing(one: Drill) -> None:
    """Commit a stage that was just aborted: the answer is that it is gone."""
    await one.ask(lambda broker: broker.stage(one.step, one.topic, [b"it"]))
    await one.begin(lambda broker: broker.abort(one.step))
    await one.refused(lambda broker: broker.commit(one.step), NotFound, "what was thrown away was committed")
    await one.cut()
    await one.refused(lambda broker: broker.commit(one.step), NotFound, "a stage was reported as gone, and is there")


def unreported_of(one: Drill) -> list[Outcome]:
    """Return the outcomes of the step's topic that are still to be reported."""
    assert one.world.broker is not None
    return [each for each in one.world.broker.unreported() if each.topic == one.topic]


async def _die(one: Drill) -> None:
    await one.publish()
    got = await one.pull()
    await one.ask(lambda broker: broker.dead_letter(got.tokens[0]))


WRITES: dict[str, Step] = {
    "publish": publish,
    "publish lone": publish_lone,
    "repeat": repeat,
    "publish batch": publish_batch,
    "submit": submit,
    "submit repeat": submit_repeat,
    "publish route": publish_route,
    "stage": stage,
    "abort": abort,
    "commit": commit,
    "commit again": commit_again,
    "stage ack": stage_ack,
    "stage ack more": stage_ack_more,
    "ack": ack,
    "nack": nack,
    "dead letter": dead_letter,
    "purge": purge,
    "purge again": purge_again,
    "redrive": redrive,
    "redrive again": redrive_again,
    "forward": forward,
    "discard": discard,
    "cancel": cancel,
    "amend": amend,
    "reported": reported,
    "advance": advance,
    "advance again": advance_again,
    "duplicate": duplicate,
    "submit duplicate": submit_duplicate,
    "cancel again": cancel_again,
    "commit of nothing": commit_of_nothing,
}
