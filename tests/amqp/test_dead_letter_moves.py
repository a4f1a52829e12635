"""Dead letters of many queues move together, and no queue holds up another."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.amqp.raw import Raw, long, short
from tests.amqp.wires import LASTING, counts, declared, durable, number, over, text, until
from wherry.broker.broker import Broker
from wherry.model.calls.dead import DeadFilter
from wherry.queueing.flow import dead_letters

QUEUES = 20


def to(queue: str) -> bytes:
    return text("x-dead-letter-exchange", "") + text("x-dead-letter-routing-key", queue)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the topics of each step that the mover tried; no message is forwarded as it expires."""
    monkeypatch.setattr(Broker, "forward_expired", lambda *_, **__: None)
    forward, tried = Broker.forward, list[list[str]]()

    async def noted(self: Broker, sources: list[tuple[str, DeadFilter]], *args: Any, **options: Any) -> int:
        tried.append([topic for topic, _ in sources])
        return await forward(self, sources, *args, **options)

    monkeypatch.setattr(Broker, "forward", noted)
    return tried


def test_a_few_dead_letters_of_many_queues_are_one_step(moves: list[list[str]]):
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "graves")
                for each in range(QUEUES):
                    declared(raw, f"q{each}", number("x-message-ttl", 400), to("graves"))
                for each in range(2 * QUEUES):
                    raw.publish(f"q{each % QUEUES}", b"%d" % each, LASTING)

        await in_thread(client)
        await until(lambda: counts(broker, "graves")[0] == 2 * QUEUES)
        assert max(map(len, moves)) > 1, "each queue was moved alone"
        assert [broker.stats(f"q{each}").dead for each in range(QUEUES)] == [0] * QUEUES
        found = (await broker.browse("graves")).column("payload").to_pylist()
        assert sorted(map(int, found)) == list(range(2 * QUEUES))

    over(story)


def test_a_queue_whose_target_is_full_is_paused_alone(moves: list[list[str]], caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "wherry.queueing")

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "graves")
                declared(raw, "small", number("x-max-length", 1), text("x-overflow", "reject-publish"))
                declared(raw, "bad", number("x-message-ttl", 1), to("small"))
                declared(raw, "good", number("x-message-ttl", 1), to("graves"))
                for each in range(6):
                    raw.publish("bad", b"%d" % each, LASTING)
                    raw.publish("good", b"%d" % each, LASTING)

        await in_thread(client)
        await until(lambda: counts(broker, "graves")[0] == 6)
        await until(lambda: broker.stats("bad").dead == 5)
        await until(lambda: "dead letters could not be moved yet" in caplog.messages)  # the pause begins
        tried = sum("bad" in step for step in moves)
        for count in range(7, 12):  # more die in both queues: the stuck one is left alone meanwhile
            await in_thread(more, url)
            await until(lambda: counts(broker, "graves")[0] == count)  # noqa: B023
        assert sum("bad" in step for step in moves) == tried
        assert (counts(broker, "small")[0], broker.stats("bad").dead) == (1, 10)

    def more(url: str) -> None:
        with Raw(url).opened() as raw:
            raw.publish("bad", b"x", LASTING)
            raw.publish("good", b"x", LASTING)

    over(story)


def test_a_binding_that_is_new_counts_for_the_next_dead_letter():
    """Bind meanwhile: messages that die in the same second share the record of their death, not their targets."""

    def bind(raw: Raw, queue: str) -> None:
        raw.call(1, (50, 20), b"\0\0" + short(queue) + short("dead") + short("") + b"\0" + long(b""))
        raw.next()

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "first")
                durable(raw, "second")
                raw.call(1, (40, 10), b"\0\0" + short("dead") + short("fanout") + b"\x02" + long(b""))
                raw.next()
                bind(raw, "first")
                declared(raw, "q", number("x-message-ttl", 0), text("x-dead-letter-exchange", "dead"))
                raw.publish("q", b"one", LASTING)
                raw.got("first")
                bind(raw, "second")
                raw.publish("q", b"two", LASTING)

        await in_thread(client)
        await until(lambda: counts(broker, "second")[0] == 1)
        assert (await broker.browse("second")).column("payload").to_pylist() == [b"two"]

    over(story)


def test_many_dead_letters_of_one_queue_do_not_hold_up_another(monkeypatch: pytest.MonkeyPatch, moves: list[list[str]]):
    monkeypatch.setattr(dead_letters, "BLOCK", 10)
    monkeypatch.setattr(dead_letters, "FEW", 5)

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "graves")
                declared(raw, "large", number("x-message-ttl", 300), to("graves"))
                declared(raw, "small", number("x-message-ttl", 300), to("graves"))
                for each in range(100):
                    raw.publish("large", b"%d" % each, LASTING)
                raw.publish("small", b"100", LASTING)

        await in_thread(client)
        await until(lambda: counts(broker, "graves")[0] == 101)
        last = max(number for number, step in enumerate(moves) if "large" in step)
        assert last > next(number for number, step in enumerate(moves) if "small" in step)

    over(story)


def test_what_expires_is_forwarded_with_its_story_in_the_step_in_which_it_does(monkeypatch: pytest.MonkeyPatch):
    async def never(self: Broker, *_: Any, **__: Any) -> int:
        raise AssertionError("a message that expired became a dead letter first")

    monkeypatch.setattr(Broker, "forward", never)

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "graves")
                declared(raw, "second", number("x-message-ttl", 20), to("graves"))
                declared(raw, "first", number("x-message-ttl", 20), to("second"))
                raw.publish("first", b"body", LASTING)

        await in_thread(client)
        await until(lambda: counts(broker, "graves")[0] == 1)
        found = (await broker.browse("graves")).to_pylist()[0]
        headers = dict(found["headers"])
        assert (found["payload"], headers["x-first-death-queue"]) == (b"body", "first")
        assert headers["x-first-death-reason"] == "expired"
        assert found["envelope"].index(b"second") < found["envelope"].index(b"first"), "the last death comes first"
        assert [(each.by, each.messages) for each in broker.audit("first")] == [("dead-letter exchange", 1)]

    over(story)
