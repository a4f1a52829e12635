"""Wrong input to every public entry: answered by an error that names the field, the value and what is allowed.

After each the broker works as before, nothing was stored or changed, and its journal can still be read.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.behaviour.bad_input import CASES, Case, World, furnished
from wherry import InvalidInput, PublishOptions
from wherry.core.apply.apply import apply
from wherry.core.inspect.audit import audit
from wherry.core.state import snapshot
from wherry.core.state.state import State
from wherry.journal.bodies.store import BodyStore
from wherry.journal.codec import decode
from wherry.journal.memory import MemoryEngine, MemoryWriter


def picture(world: World) -> Any:
    """Return everything that a wrong call could have changed."""
    state = world.broker.shard.state
    held = [(lease.token, lease.offset.tolist(), lease.deadline_ms) for lease in state.leases.all()]
    names = sorted(state.subscription("jobs", "workers").consumers)
    return snapshot.digest(state), world.broker.stats("jobs"), held, names, world.broker.shard.committer.submitted


def check_journal(engine: MemoryEngine, state: State) -> None:
    """Check that the journal can be read, and leads to the same state."""
    store = BodyStore(None)
    replayed = State(store)
    for record in engine.records:
        apply(replayed, decode(record.body))
    assert snapshot.digest(replayed) == snapshot.digest(state)


async def _keep(writer: MemoryWriter, before: int) -> None:
    pass


async def attempt(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryWriter, "trim", _keep)  # a broker in memory drops its journal after a second
    engine = MemoryEngine()
    world = await furnished(engine)
    try:
        before = picture(world)
        with pytest.raises(case.kind) as caught:
            answer = case.call(world)
            if asyncio.iscoroutine(answer):
                await answer
        text = str(caught.value)
        assert case.field in text
        assert case.value in text
        if isinstance(caught.value, InvalidInput):
            assert "; allowed: " in text
            assert len(text.split("; allowed: ")[1]) > 3
        assert picture(world) == before
        audit(world.broker.shard.state)
        await check_it_works(world)
        check_journal(engine, world.broker.shard.state)
    finally:
        await world.broker.close()


async def check_it_works(world: World) -> None:
    await world.delivery.ack()
    await world.broker.publish("jobs", [b"after"], PublishOptions(partition=0))
    rest = await world.consumer.pull()
    assert rest.payloads() == [b"waits", b"after"]
    await rest.ack()
    assert await world.broker.redrive("jobs") == 1
    assert len(await world.broker.commit("open")) == 1


def parameter(case: Case) -> Any:
    return pytest.param(case, id=f"{case.field}-{case.value}")


@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_a_bad_call_is_refused_and_nothing_changes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(attempt(case, monkeypatch))


def test_there_are_many_of_them() -> None:
    assert len(CASES) >= 60


def opening(*args: Any, **fields: Any) -> str:
    async def run() -> None:
        async with wherry.open(*args, **fields):
            pass

    with pytest.raises(InvalidInput) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_opening(tmp_path: Path) -> None:
    assert opening(5).startswith("path: got 5; allowed: a directory")
    assert opening("").startswith("path: got ''; allowed: a directory")
    (tmp_path / "file").write_bytes(b"")
    assert "file'; allowed: a directory, not a file" in opening(tmp_path / "file")
    assert opening(cache_bytes=0).startswith("cache_bytes: got 0; allowed: a whole number from ")
    assert opening(cache_bytes="1").startswith("cache_bytes: got '1'; allowed: a whole number from ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
