"""A PUBLISH that is alone in its turn: what it becomes is what gathered ones become, and company joins it in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import NativeWorld, in_memory
from wherry.broker.commit.commit import Committer
from wherry.broker.commit.gathering import Gathering
from wherry.core.state import snapshot
from wherry.model.errors import WriterFailed
from wherry.sim.patch import patched
from wherry.wire.native.codec.frames import Kind
from wherry.wire.native.codec.publishes import decode_confirm


@contextmanager
def noted() -> Iterator[list[str]]:
    """Which publishes were alone until the end of their turn, and took the planned way or not."""
    found: list[str] = []

    def make(publish: Any) -> Any:
        def call(self: Gathering, lone: Any) -> bool:
            done = bool(publish(self, lone))
            found.append("planned" if done else "gathered")
            return done

        return call

    with patched(Gathering, "_publish_lone", make):
        yield found


def answers(client: Any) -> dict[int, Any]:
    """The offset of each publish that is confirmed, and the error of each that is refused, by its number."""
    return {
        number: answer.code if isinstance(answer, NativeError) else answer.offset
        for number, answer in client.answers.items()
    }


def lived(*, lone: bool) -> tuple[list[bytes], str, dict[int, Any]]:
    """The journal, the state and the confirms of some publishes, with or without a way for lone ones."""
    journal: list[bytes] = []
    left: list[Any] = []

    def submitted(submit: Any) -> Any:
        def call(self: Committer, parts: list[bytes], size: int) -> int:
            journal.append(b"".join(map(bytes, parts)))
            return int(submit(self, parts, size))

        return call

    @in_memory()
    async def run(world: NativeWorld) -> None:
        client = await world.client()
        for payloads in ([b"a"], [b"b"], [b"c", b"d"], [b"x" * 70_000], [b"e"]):
            client.begin_publish("jobs", *payloads)
            await world.settle_down()
        for topic, payload in (("jobs", b"f"), ("jobs", b"g"), ("none", b"h")):
            last = client.begin_publish(topic, payload)
        await client.until(lambda: last in client.answers)
        left.extend((snapshot.digest(world.broker.shard.state), answers(client)))

    with patched(Committer, "submit", submitted):
        if lone:
            run()
        else:
            with patched(Gathering, "add_lone", lambda _: lambda self, publish: False):
                run()
    return journal, *left


def test_lone_and_gathered_publishes_leave_the_same_journal_and_state_and_get_the_same_confirms():
    with noted() as taken:
        alone = lived(lone=True)
    assert taken.count("planned") >= 2, "lone publishes took the planned way"
    assert "gathered" in taken, "the first of a topic and a large one did not"
    assert lived(lone=False) == alone


@pytest.mark.parametrize("company", ["native", "call", "batch"])
def test_company_that_comes_in_the_same_turn_is_behind_the_first(company):
    @in_memory()
    async def run(world: NativeWorld) -> None:
        client = await world.client()
        await client.publish("jobs", b"first")
        with noted() as taken:
            number = client.begin_publish("jobs", b"lone")
            if company == "native":
                client.begin_publish("jobs", b"behind")
            elif company == "call":
                await world.broker.publish("jobs", b"behind")
            else:
                await world.broker.publish("jobs", [b"behind", b"and more"])
            await world.settle_down()
        assert "planned" not in taken
        assert answers(client)[number] == 1
        consumer = await world.broker.consumer("jobs", "workers")
        assert (await consumer.pull()).payloads()[:3] == [b"first", b"lone", b"behind"]

    run()


def test_a_lone_publish_is_not_confirmed_when_the_journal_fails():
    @in_memory()
    async def run(world: NativeWorld) -> None:
        client = await world.client()
        await client.publish("jobs", b"first")

        def failing(_: Any) -> Any:
            def fail(self: Committer) -> None:
                self.fail(WriterFailed("the disk is gone"))

            return fail

        with patched(Committer, "_write_soon", failing), noted() as taken:
            number = client.begin_publish("jobs", b"lost")
            await client.until(lambda: number in client.answers)
        assert taken == ["planned"]
        assert isinstance(client.answers[number], NativeError)
        assert world.sessions.intake.unstored_bytes == 0

    run()


def test_a_publish_waits_for_the_sync_under_way_with_those_that_come_meanwhile():
    @in_memory()
    async def run(world: NativeWorld) -> None:
        client = await world.client()
        await client.publish("jobs", b"first")
        held: list[Committer] = []

        def hold(_: Any) -> Any:
            def note(self: Committer) -> None:
                held.append(self)

            return note

        with patched(Committer, "_write_soon", hold), noted() as taken:
            client.begin_publish("jobs", b"lone")
            await world.settle_down()
            for payload in (b"second", b"third"):
                last = client.begin_publish("jobs", payload)
                await world.settle_down()
            assert taken == ["planned"]
            assert held[0].submitted - held[0].durable == 1
        held[0]._write_soon()
        await client.until(lambda: last in client.answers)
        confirms = [decode_confirm(body) for kind, _, _, body in client.frames if kind == Kind.CONFIRM]
        assert [(each.requests, each.offset) for (each,) in confirms] == [(1, 0), (3, 1)]

    run()
