"""Long looks: no more is loaded than is asked for, one slice at a time, with turns for all other calls between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.behaviour.web import Web, web
from wherry.broker.waiting.slices import SLICE_MESSAGES, TURNS
from wherry.model.calls.publish import Published
from wherry.wire.http.endpoints.publish import IDS_MAX
from wherry.wire.http.formats import as_json
from wherry.wire.http.protocol.message import ARROW

MESSAGES = 3_000
PULL = "POST /v1/topics/jobs/subscriptions/workers/pull?consumer=ann&messages="


class Work:
    """How much was done in each turn of the loop, and how many turns there were."""

    def __init__(self) -> None:
        self.turns = 0
        self.rows: dict[int, int] = {}

    def note(self, rows: int) -> None:
        self.rows[self.turns] = self.rows.get(self.turns, 0) + rows

    async def count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Web, Work]]:
    """Publish messages in many calls, and watch what is loaded and written of their topic from now on."""
    async with web() as found:
        await found.jobs()
        for _ in range(30):
            messages = [{"payload": "x", "key": f"k{number}"} for number in range(MESSAGES // 30)]
            await found.good("POST /v1/topics/jobs/messages?partition=1", messages)
        work, store = Work(), found.broker.shard.store
        loading, writing = store.messages, as_json._rows

        def load(topic: int, partition: int, offsets: Any) -> Any:
            work.note(len(offsets))
            return loading(topic, partition, offsets)

        def write(batch: Any, leases: Any) -> Any:
            work.note(batch.num_rows)
            return writing(batch, leases)

        monkeypatch.setattr(store, "messages", load)
        monkeypatch.setattr(as_json, "_rows", write)
        counting = asyncio.create_task(work.count())
        yield found, work
        counting.cancel()


def run(test: Callable[[Web, Work], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), watched(monkeypatch) as (found, work):
            await test(found, work)

    asyncio.run(main())


LOOKS = {
    "browse": "GET /v1/topics/jobs/messages?partition=1&limit={limit}",
    "dead": "GET /v1/topics/jobs/dead?limit={limit}",
    "scheduled": "GET /v1/topics/jobs/subscriptions/workers/scheduled?limit={limit}",
}


async def prepared(found: Web, look: str) -> None:
    """Make messages that the look finds."""
    if look == "scheduled":
        later = found.broker.shard.now().wall_ms + 1_000_000
        many = [{"payload": "x", "due_ms": later + number} for number in range(MESSAGES)]
        await found.good("POST /v1/topics/jobs/messages?partition=1", many)
    elif look == "dead":
        held = await found.receipts(MESSAGES + 3)
        await found.good("POST /v1/topics/jobs/subscriptions/workers/dead-letter", {"receipts": held})


@pytest.mark.rows("A14")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("limit", [1, 7, SLICE_MESSAGES, SLICE_MESSAGES + 1, 1_000])
def test_no_more_is_loaded_than_is_asked_for(look: str, limit: int, monkeypatch: pytest.MonkeyPatch):
    async def test(found: Web, work: Work) -> None:
        await prepared(found, look)
        work.rows.clear()
        page = await found.good(LOOKS[look].format(limit=limit), accept=ARROW)
        assert page
        assert sum(work.rows.values()) == limit
        assert max(work.rows.values()) <= SLICE_MESSAGES

    run(test, monkeypatch)


@pytest.mark.rows("A14")
def test_a_following_page_loads_no_more_either(monkeypatch: pytest.MonkeyPatch):
    async def test(found: Web, work: Work) -> None:
        await prepared(found, "dead")
        for path in (LOOKS["browse"], LOOKS["dead"]):
            first = await found.good(path.format(limit=5))
            work.rows.clear()
            second = await found.good(path.format(limit=1) + f"&after={first['next']}")
            assert len(second["messages"]) == 1
            assert sum(work.rows.values()) == 1 + 1  # loaded, and written

    run(test, monkeypatch)


@pytest.mark.rows("A14", "Q3")
def test_many_calls_that_look_do_one_slice_in_so_many_turns(monkeypatch: pytest.MonkeyPatch):
    async def test(found: Web, work: Work) -> None:
        lines = ["GET /v1/topics/jobs/search?key=none", *(LOOKS["browse"].format(limit=MESSAGES) for _ in range(2))] * 4
        work.rows.clear()
        await asyncio.gather(*(found.good(line) for line in lines))
        assert sum(work.rows.values()) >= MESSAGES * len(lines)
        assert max(work.rows.values()) <= SLICE_MESSAGES
        turns = sorted(work.rows)
        between = [later - turn for turn, later in pairwise(turns)]
        assert min(between) >= TURNS

    run(test, monkeypatch)


@pytest.mark.rows("Q3")
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_what_was_pulled_is_written_in_slices(kind: str, monkeypatch: pytest.MonkeyPatch):
    async def test(found: Web, work: Work) -> None:
        work.rows.clear()
        whole = await found.good(PULL + str(MESSAGES), accept=kind)
        messages = whole["messages"] if isinstance(whole, dict) else list(map(msgspec.json.decode, whole.splitlines()))
        assert len(messages) == MESSAGES
        assert max(work.rows.values()) <= SLICE_MESSAGES
        receipts = [each["receipt"] for each in messages]
        await found.good("POST /v1/topics/jobs/subscriptions/workers/ack", {"receipts": receipts})
        assert (await found.good("GET /v1/topics/jobs/subscriptions/workers"))["stats"]["leased"] == 0

    run(test, monkeypatch)


@pytest.mark.rows("Q3")
def test_a_client_that_leaves_while_its_messages_are_written_has_pulled_nothing(monkeypatch: pytest.MonkeyPatch):
    async def test(found: Web, work: Work) -> None:
        work.rows.clear()
        pulling = asyncio.create_task(found.good(PULL + f"{MESSAGES}&wait_ms=1000"))
        for _ in range(100 * TURNS):
            if len(work.rows) == 3:
                break
            await asyncio.sleep(0)
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        assert (await found.good("GET /v1/topics/jobs/subscriptions/workers"))["stats"]["leased"] == 0

    run(test, monkeypatch)


@pytest.mark.parametrize("count", [IDS_MAX, IDS_MAX + 1, 3 * IDS_MAX])
def test_ids_of_many_messages_are_those_of_few(count: int, monkeypatch: pytest.MonkeyPatch):
    async def test(found: Web, work: Work) -> None:
        made: list[int] = []
        ids = Published.ids

        def some(published: Published, *part: int) -> list[str]:
            made.append(len(found_ids := ids(published, *part)))
            return found_ids

        monkeypatch.setattr(Published, "ids", some)
        answer = await found.good("POST /v1/topics/jobs/messages?partition=0", [{"payload": ""}] * count)
        assert (answer["count"], answer["ids"]) == (count, [f"0-{number + 3}" for number in range(count)])
        assert max(made) <= IDS_MAX
        assert list(answer) == ["count", "placed", "repeated", "dead", "durable", "mesh", "ids"]

    run(test, monkeypatch)
