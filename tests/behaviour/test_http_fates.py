"""The fate of a message over HTTP: the answer that waits, and the question."""

from __future__ import annotations

import asyncio

import pytest

from tests.behaviour.web import Web, web, with_jobs
from wherry.model.catalog import webhook
from wherry.model.errors import Forbidden

PUBLISH = "POST /v1/topics/jobs/messages"
FATE = "GET /v1/topics/jobs/messages/{}/fate"


async def settle(jobs: Web, how: str, receipts: list[str]) -> None:
    await jobs.good(f"POST /v1/topics/jobs/subscriptions/workers/{how}", {"receipts": receipts})


async def waiting(jobs: Web, query: str, messages: object) -> asyncio.Task[dict[str, object]]:
    """Begin a publish that waits for its outcome, and wait until its messages are stored."""
    before = jobs.broker.stats("jobs").messages
    task = asyncio.create_task(jobs.good(f"{PUBLISH}?{query}", messages))
    async with asyncio.timeout(5):
        while jobs.broker.stats("jobs").messages == before or not jobs.broker.shard.watches:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return task


@pytest.mark.rows("K2", "K3", "K6")
@with_jobs
async def test_the_answer_waits_as_long_as_it_is_asked_to(jobs):
    stored = await jobs.good(f"{PUBLISH}?partition=1", {"payload": "a"})
    assert "fate" not in stored
    delivered = await waiting(jobs, "partition=1&wait=delivered", {"payload": "b"})
    settled = await waiting(jobs, "partition=1&wait=settled", [{"payload": "c"}, {"payload": "d"}])
    receipts = await jobs.receipts()
    assert (await delivered)["fate"] == "delivered"
    assert not settled.done()
    await settle(jobs, "ack", receipts[:-1])
    assert not settled.done()
    await settle(jobs, "dead-letter", receipts[-1:])
    answer = await settled
    assert (answer["fate"], answer["fates"]) == ({"dead": 1, "settled": 1}, ["settled", "dead"])
    assert answer["ids"] == ["1-2", "1-3"]


@with_jobs
async def test_a_wait_that_takes_too_long_is_answered_with_what_is(jobs):
    answer = await jobs.good(f"{PUBLISH}?wait=settled&timeout_ms=1&partition=1&ids=false", [{"payload": "a"}] * 3)
    assert answer["fate"] == {"waiting": 3}
    assert "fates" not in answer
    for wrong in (
        "timeout_ms=0",
        "timeout_ms=600001",
        "wait=seen",
        "callback=ftp://x",
        "persistent=false&callback=http://x",
    ):
        assert (await jobs.ask(f"{PUBLISH}?{wrong}", {"payload": "a"})).status == 400
    assert jobs.broker.stats("jobs").messages == 6


@with_jobs
async def test_a_client_that_hangs_up_has_published(jobs):
    task = await waiting(jobs, "wait=settled&partition=1", {"payload": "a"})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not jobs.broker.shard.watches
    assert await jobs.good(FATE.format("1-0")) == {
        "id": "1-0",
        "fate": "waiting",
        "subscriptions": {"workers": "waiting"},
    }


@pytest.mark.rows("K5", "A27")
@with_jobs
async def test_a_producer_asks_what_became_of_its_messages(jobs):
    receipts = await jobs.receipts()
    assert (await jobs.good(FATE.format("m0")))["fate"] == "delivered"
    await settle(jobs, "ack", receipts[:1])
    await settle(jobs, "dead-letter", receipts[1:2])
    await settle(jobs, "release", receipts[2:])
    await jobs.good("DELETE /v1/topics/jobs/messages/m2")
    fates = [(await jobs.good(FATE.format(f"0-{offset}")))["fate"] for offset in range(3)]
    assert fates == ["settled", "dead", "cancelled"]
    assert (await jobs.ask(FATE.format("m0"))).status == 404, "by an id of its own only while it is there"


@with_jobs
async def test_a_callback_is_stored_with_the_message(jobs):
    await jobs.good(f"{PUBLISH}?partition=1&callback=https://example.com/a%3Fb%3D1", {"payload": "a"})
    await settle(jobs, "ack", await jobs.receipts())
    [outcome] = jobs.broker.unreported()
    assert (outcome.id, outcome.fate, outcome.url) == ("1-0", "settled", "https://example.com/a?b=1")


@with_jobs
async def test_a_callback_that_is_given_again_and_again_is_parsed_once(jobs):
    webhook._allowed_instead.cache_clear()
    for _ in range(3):
        await jobs.good(f"{PUBLISH}?callback=https://example.com/again", {"payload": "a"})
    assert webhook._allowed_instead.cache_info().misses == 1


def test_the_right_to_publish_is_enough_to_ask():
    def guard(request, verb, topic):
        if verb != "publish":
            raise Forbidden("p", verb, topic)
        return "p"

    async def main() -> None:
        async with web(guard=guard) as found:
            await found.broker.create_topic("jobs")
            await found.good(PUBLISH, {"payload": "a"})
            assert (await found.good(FATE.format("0-0")))["fate"] == "waiting"

    asyncio.run(main())
