"""Three ways to learn the fate of a message agree: a publish that waits, the callback, the question.

Thousands of messages, and a consumer that fails for one in twenty of them: half of the failed ones become dead letters,
half are acked when they come again.
"""

import asyncio
from collections import Counter

import msgspec
import pytest

import wherry
from tests.integration.hooks import AT_ONCE, run, serving
from tests.integration.receiver import Receiver, until
from tests.integration.test_callbacks import fates
from wherry.client.link.address import Address
from wherry.client.link.pool import Pool
from wherry.client.link.transport import ClientRequest

CALLS, ASKED_AT_A_TIME = 100, 16
FAILS, DIES = 20, 40


async def consume(client: wherry.Client) -> None:
    """Do the work, as well as it can be done."""
    while True:
        batch = await client.pull("jobs", "workers", wait_ms=1_000)
        numbers = [(row, int(message.payload), message.attempt) for row, message in enumerate(batch)]
        failed = [row for row, number, attempt in numbers if number % (FAILS if attempt == 1 else DIES) == 0]
        done = [row for row, *_ in numbers if row not in set(failed)]
        if failed:
            await batch.nack(failed, error="too hard")
        if done:
            await batch.ack(done)


async def publish(pool: Pool, first: int, size: int, callback: str) -> dict[str, str]:
    """Publish, and return the fate of each message from the answer of a call that waited for it."""
    messages = [{"payload": str(first + number)} for number in range(size)]
    target = f"/v1/topics/jobs/messages?wait=settled&timeout_ms=60000&callback={callback}"
    body, kind = msgspec.json.encode(messages), "application/json"
    answer = await pool.ask(ClientRequest("POST", target, [body], kind, wait_s=60.0))
    assert answer.status == 201
    view = msgspec.json.decode(bytes(answer.body))
    return dict(zip(view["ids"], view["fates"], strict=True))


async def ask(pool: Pool, ids: list[str]) -> dict[str, str]:
    """Ask for the fate of each message, one question each."""
    found: dict[str, str] = {}
    left = iter(ids)

    async def some() -> None:
        for message_id in left:
            answer = await pool.ask(ClientRequest("GET", f"/v1/topics/jobs/messages/{message_id}/fate"))
            found[message_id] = msgspec.json.decode(bytes(answer.body))["fate"]

    await asyncio.gather(*(some() for _ in range(ASKED_AT_A_TIME)))
    return found


@pytest.mark.rows("A27")
@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
@run
async def test_wait_callback_and_question_agree(tmp_path, count):
    async with Receiver() as receiver, serving(tmp_path) as (node, client):
        await client.create_topic("jobs", partitions=4)
        await client.subscribe("jobs", "workers", retry=AT_ONCE)
        pool = Pool(Address.parse(node.url), connections=CALLS)
        consuming = asyncio.create_task(consume(client))
        url = f"http://127.0.0.1:{receiver.port}/done"
        size = count // CALLS
        answers = await asyncio.gather(*(publish(pool, call * size, size, url) for call in range(CALLS)))
        waited = {message_id: fate for answer in answers for message_id, fate in answer.items()}
        await until(lambda: sum(each[-1] != "delivered" for each in fates(receiver).values()) == count)
        reported = fates(receiver)
        asked = await ask(pool, list(waited))
        consuming.cancel()
        await pool.close()
    assert Counter(waited.values()) == {"settled": count - count // DIES, "dead": count // DIES}
    assert waited == asked
    assert waited == {message_id: each[-1] for message_id, each in reported.items()}
    assert {tuple(each[:-1]) for each in reported.values()} == {("delivered",)}
