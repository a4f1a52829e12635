"""Publishes that are gathered while the journal fails, a callback raises or an entry cannot be applied: none hangs."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import wherry
from tests.behaviour.world import Home, drain, in_loop
from wherry import Message
from wherry.broker.commit import gathering
from wherry.broker.commit import shard as shard_module
from wherry.broker.commit.shard import Shard
from wherry.model.calls.rows import Handling, Rows
from wherry.model.errors import WherryError
from wherry.queueing.flow.intake import Intake, Unconfirmed
from wherry.sim.patch import patched

_THIS = sys.modules[__name__]
PATIENCE_S = 60
LASTING = Handling(persistent=True)


class Confirms:
    """A channel that notes its confirms."""

    def __init__(self) -> None:
        self.found: list[tuple[int, set[int]]] = []

    def confirmed(self, last: int, refused: set[int]) -> None:
        self.found.append((last, refused))


class HeldDisk:
    """The disk of a broker: writes wait until `end`, which may let them fail."""

    def __init__(self, broker: wherry.Broker) -> None:
        self._ends, self._fault = asyncio.Event(), False
        writer = broker.shard.writer
        append: Callable[..., Awaitable[Any]] = writer.append

        async def held(*given: Any) -> Any:
            await self._ends.wait()
            if self._fault:
                raise OSError(errno.EIO, "planted")
            return await append(*given)

        writer.append = held  # type: ignore[method-assign, assignment]
        writer.append_at_once = lambda *_: None  # type: ignore[method-assign]

    def end(self, *, fails: bool = False) -> None:
        self._fault = fails
        self._ends.set()


async def opened(home: Home, **terms: Any) -> wherry.Broker:
    broker = await home.open()
    await broker.create_topic("t", **terms)
    await broker.subscribe("t", "readers")
    return broker


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ended(*calls: asyncio.Task[Any]) -> list[Any]:
    """Return what each call returned or raised."""
    return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)


async def confirm_behind_a_failure(home: Home) -> list[tuple[int, set[int]]]:
    """Lose the first publish with the journal; the second reached no queue, so that nothing is stored of it."""
    broker = await opened(home)
    intake, channel, disk = Intake(broker), Confirms(), HeldDisk(broker)
    intake.add("t", Rows([b"lost"]), Unconfirmed(channel, 1), LASTING)
    await turns()
    intake.note(Unconfirmed(channel, 2))
    await turns()
    disk.end(fails=True)
    while broker.shard.committer.failure is None:  # noqa: ASYNC110  nothing signals it
        await asyncio.sleep(0)
    await turns(20)
    assert intake.unstored_bytes == 0
    return channel.found


@pytest.mark.rows("Q12")
@in_loop
async def test_no_confirm_covers_a_publish_that_the_journal_lost(home: Home):
    assert await confirm_behind_a_failure(home) == []


@in_loop
async def test_a_confirm_that_covers_a_lost_publish_is_noticed(home: Home):
    """Plant that the intake forgets the failure of the journal."""

    class Forgetful(Intake):
        _has_failed = property(lambda _: False, lambda *_: None)

    with patched(_THIS, "Intake", lambda _: Forgetful):
        assert await confirm_behind_a_failure(home) != []


async def fails_after_the_write(home: Home) -> tuple[Any, list[bytes]]:
    broker = await opened(home)
    left = [1]

    def make(carry_out: Any) -> Any:
        def once(self: Shard, *given: Any) -> None:
            carry_out(self, *given)
            if left:
                left.pop()
                raise RuntimeError("planted")

        return once

    with patched(Shard, "_carry_out", make):
        (answer,) = await ended(asyncio.create_task(broker.publish("t", b"one")))
    return answer, await drain(await broker.consumer("t", "readers"))


@in_loop
async def test_what_was_written_when_a_publish_failed_is_not_published_again(home: Home):
    answer, found = await fails_after_the_write(home)
    assert isinstance(answer, WherryError)
    assert found == [b"one"]


async def raises_at_the_end_of_a_sync(home: Home) -> tuple[list[Any], WherryError | None]:
    """Raise in a callback of a submission that is submitted when the sync before it ends."""
    broker = await opened(home)
    disk = HeldDisk(broker)
    first = asyncio.create_task(broker.publish("t", b"first"))
    await turns()

    def fail(_: object) -> None:
        raise RuntimeError("planted")

    broker.gathering.open_submission.on_submitted.append(fail)
    second = asyncio.create_task(broker.publish("t", b"second"))
    other = asyncio.create_task(broker.create_topic("other"))
    await turns()
    disk.end()
    calls = (first, second, other)
    while broker.shard.committer.failure is None and not all(call.done() for call in calls):  # noqa: ASYNC110
        await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    return await ended(*calls), broker.shard.committer.failure


@in_loop
async def test_a_callback_that_raises_hurts_no_other_caller_and_not_the_journal(home: Home):
    found, failure = await raises_at_the_end_of_a_sync(home)
    assert [each for each in found if isinstance(each, BaseException)] == []
    assert failure is None


@in_loop
async def test_a_callback_that_ends_the_journal_is_noticed(home: Home):
    """Plant that callbacks are called without a guard."""

    def unguarded(_: Any) -> Any:
        return lambda calls, *given: [call(*given) for call in calls]

    with patched(gathering, "_call_all", unguarded):
        _, failure = await raises_at_the_end_of_a_sync(home)
    assert failure is not None


@in_loop
async def test_an_entry_that_cannot_be_applied_leaves_no_caller_waiting(home: Home):
    broker = await opened(home)
    await broker.create_topic("other")
    disk = HeldDisk(broker)
    first = asyncio.create_task(broker.publish("t", b"first"))
    await turns()

    def make(_: Any) -> Any:
        def fail(*_: Any) -> None:
            raise RuntimeError("planted")

        return fail

    with patched(shard_module, "apply", make):
        more = [asyncio.create_task(broker.publish(topic, bytes(60_000))) for topic in ("t", "other", "t")]
        await turns()
        disk.end()
        found = await ended(first, *more)
    assert all(isinstance(each, WherryError) for each in found)


@in_loop
async def test_gathered_messages_are_answered_when_the_broker_closes(home: Home):
    broker = await opened(home)
    disk = HeldDisk(broker)
    calls = [asyncio.create_task(broker.publish("t", b"%d" % number)) for number in range(2)]
    await turns()
    late = [asyncio.create_task(broker.publish("t", b"late")) for _ in range(2)]
    await turns()
    closing = asyncio.create_task(broker.close())
    await turns()
    disk.end()
    found = await ended(*calls, *late)
    await closing
    assert [each for each in found[:2] if isinstance(each, BaseException)] == []
    assert all(not isinstance(each, BaseException) or isinstance(each, WherryError) for each in found[2:])


@in_loop
async def test_one_of_many_that_is_cancelled_leaves_the_others(home: Home):
    broker = await opened(home)
    disk = HeldDisk(broker)
    calls = [asyncio.create_task(broker.publish("t", b"%d" % number)) for number in range(3)]
    await turns()
    calls[1].cancel()
    disk.end()
    found = await ended(*calls)
    assert [isinstance(each, asyncio.CancelledError) for each in found] == [False, True, False]
    assert sorted(await drain(await broker.consumer("t", "readers"))) == [b"0", b"1", b"2"]


@in_loop
async def test_later_batches_of_a_submission_that_had_to_wait_keep_their_place(home: Home):
    """Publish to two topics of which the second has to wait; a message that comes meanwhile is behind them."""
    broker = await opened(home)
    await broker.create_topic("u")
    await broker.subscribe("u", "readers")
    turned_away: list[str] = []

    def make(submit_at_once: Any) -> Any:
        def choosy(self: wherry.Broker, topic: str, *given: Any) -> Any:
            if topic == "u" and len(turned_away) < 1:
                turned_away.append(topic)
                return None
            return submit_at_once(self, topic, *given)

        return choosy

    with patched(wherry.Broker, "submit_at_once", make):
        calls = [asyncio.create_task(broker.publish(*each)) for each in (("t", b"1"), ("u", b"1"), ("u", b"2"))]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(broker.publish("u", b"3")))
        calls.append(asyncio.create_task(broker.publish("u", [b"4", Message(payload=b"5")])))
        await ended(*calls)
    assert turned_away == ["u"]
    assert await drain(await broker.consumer("u", "readers")) == [b"1", b"2", b"3", b"4", b"5"]
    assert await drain(await broker.consumer("t", "readers")) == [b"1"]
