"""A broker whose journal failed, or that asks to be left alone for a while: producers and consumers come back."""

from __future__ import annotations

import asyncio
import time

import pytest

import wherry
from wherry.client.link.errors import RETRY_AFTER_S_MAX, error_of, retry_after_s, returns
from wherry.client.link.transport import ClientRequest, ClientResponse
from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem

STORED = ClientResponse(201, "application/json", b'{"placed": [[0, 0, 1]]}')
FAILED = [wherry.WriterFailed("no more"), wherry.StorageError("no more"), wherry.Fenced("no more")]
AWAY = [*FAILED, wherry.Closed("no more"), HttpError("busy", "no more")]


def answer_of(fault: WherryError, after_s: float | None = None) -> ClientResponse:
    answer = problem(fault)
    return ClientResponse(answer.status, answer.content_type, b"".join(map(bytes, answer.body)), after_s)


class Failing:
    """A broker that fails so many times, and then is itself again."""

    def __init__(self, answer: ClientResponse, times: int) -> None:
        self._answer, self._times = answer, times
        self.targets: list[str] = []

    async def ask(self, ask: ClientRequest) -> ClientResponse:
        self.targets.append(ask.target)
        return STORED if len(self.targets) > self._times else self._answer

    async def close(self) -> None:
        """Do nothing: a failing broker holds nothing."""


@pytest.mark.parametrize("fault", AWAY, ids=lambda fault: fault.code)
def test_a_producer_sends_the_same_again_until_the_broker_is_back(fault: WherryError):
    async def main() -> list[str]:
        broker = Failing(answer_of(fault), 3)
        async with wherry.Client(broker).producer("jobs") as producer:
            assert await (await producer.publish(b"a")).stored() == "0-0"
        return broker.targets

    targets = asyncio.run(asyncio.wait_for(main(), 10))
    assert len(targets) == 4
    assert len(set(targets)) == 1


def test_a_producer_that_gave_up_reports_why():
    async def main() -> None:
        async with wherry.Client(Failing(answer_of(FAILED[0], 20.0), 1_000)).producer(
            "jobs", patience_s=0.2
        ) as producer:
            with pytest.raises(wherry.WriterFailed):
                await (await producer.publish(b"a")).stored()

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(main(), 10))
    assert 0.2 <= time.monotonic() - began < 5


def test_a_producer_waits_as_long_as_it_was_asked_to():
    async def main() -> None:
        async with wherry.Client(Failing(answer_of(AWAY[-1], 0.5), 1)).producer("jobs") as producer:
            await producer.publish(b"a")

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(main(), 10))
    assert time.monotonic() - began >= 0.5


def test_a_reader_and_its_acks_outlive_a_failed_journal(monkeypatch):
    async def main() -> None:
        async with wherry.embedded() as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers")
            await client.publish("jobs", [b"a"])
            ask, left = client._transport.ask, {"pull": 2, "ack": 2}

            async def failing(wanted: ClientRequest) -> ClientResponse:
                verb = wanted.target.partition("?")[0].rpartition("/")[2]
                left[verb] = left.get(verb, 0) - 1
                return answer_of(FAILED[left[verb]]) if left[verb] >= 0 else await ask(wanted)

            monkeypatch.setattr(client._transport, "ask", failing)
            async with client.consumer("jobs", "workers") as consumer:
                message = await anext(aiter(consumer))
                await message.ack()
            assert left["pull"] < 0
            assert left["ack"] == -1
            assert (await client.stats("jobs")).subscriptions[0].lag == 0

    asyncio.run(asyncio.wait_for(main(), 10))


def test_which_errors_are_tried_again_and_when():
    assert all(returns(error_of(answer_of(fault))) for fault in AWAY)
    for final in (wherry.Corrupt("a", 1, "b"), wherry.DiskFull(1, 0), wherry.LimitReached("a", 1, 2)):
        assert not returns(error_of(answer_of(final)))
    assert retry_after_s(error_of(answer_of(FAILED[0]))) == 0
    assert retry_after_s(error_of(answer_of(FAILED[0], 3.0))) == 3
    assert retry_after_s(error_of(answer_of(FAILED[0], float("inf")))) == RETRY_AFTER_S_MAX


def test_in_process_a_failed_broker_is_not_started_again():
    async def main() -> None:
        async with wherry.embedded() as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers")
            async with client.consumer("jobs", "workers") as consumer:
                reading = asyncio.ensure_future(anext(aiter(consumer)))
                await asyncio.sleep(0.05)
                await client.broker.close()
                with pytest.raises(wherry.Closed):
                    await reading

    asyncio.run(asyncio.wait_for(main(), 10))
