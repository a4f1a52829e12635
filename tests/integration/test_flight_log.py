"""The log over Flight: in order and whole, whatever segments overlap, break off, or are lost."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pyarrow import flight

import wherry
from tests.integration.flights import Flights, calls_of, payloads, until
from tests.integration.served import served
from wherry.broker.calls import log
from wherry.broker.opening import open as open_broker
from wherry.journal.bodies import window as windows
from wherry.spark.link import FlightLink
from wherry.wire.flight.server import serve

T = TypeVar("T")


async def flush(broker: wherry.Broker, keep_bytes: int = 1) -> None:
    """Move what is in memory to segments, as housekeeping does over its budget."""
    store, shard = broker.shard.store, broker.shard
    before, store.cache_bytes_max = store.cache_bytes_max, keep_bytes
    groups = store.overflow(shard.committer.durable)
    store.cache_bytes_max = before  # else housekeeping would move the same
    for group in groups:
        await store.seal(group, shard.wanted)


async def tangle(home: Path) -> None:
    """Write messages that stand in the journal in another order than they have in the topic."""
    async with open_broker(str(home)) as broker:
        await broker.create_topic("t")
        await broker.subscribe("t", "s")
        await broker.stage("k", "t", [b"staged %d" % n + bytes(1_000) for n in range(1_000)])
        await broker.publish("t", [b"before %d" % n for n in range(1_000)])
        await broker.commit("k")
        await broker.publish("t", [b"after %d" % n for n in range(1_000)])


async def in_tangled_segments(home: Path, work: Callable[[str], T]) -> T:
    """Do some work in another thread, against a broker whose segments overlap, given its address."""
    await tangle(home)
    async with open_broker(str(home)) as broker:
        store = broker.shard.store
        await flush(broker, store.cached_bytes - 1)
        await flush(broker)
        (shelf,) = store._partitions.values()
        ranges = sorted((segment.first, segment.last) for segment in shelf.segments)
        assert any(later[0] < earlier[1] for earlier, later in pairwise(ranges)), ranges
        async with serve(broker, "127.0.0.1", 0) as server:
            return await asyncio.to_thread(work, f"grpc://127.0.0.1:{server.port}")


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


TICKET = {"topic": "t", "partition": 0, "start": 0, "stop": 3_000, "columns": ["offset"]}


def test_a_part_is_ascending_though_its_segments_overlap(tmp_path: Path):
    def read(url: str) -> list[int]:
        return Flights(url).ticket(**TICKET)["offset"].to_pylist()

    assert asyncio.run(in_tangled_segments(tmp_path, read)) == list(range(3_000))


def test_a_reader_whose_connection_breaks_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    once, broken = FlightLink.once, list[int]()

    def breaking(self: FlightLink, ticket: dict[str, object]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(once(self, ticket)):
            if number == 1 and len(broken) < 2:
                broken.append(number)
                raise flight.FlightUnavailableError("connection reset")
            yield batch

    monkeypatch.setattr(FlightLink, "once", breaking)
    monkeypatch.setattr(windows, "ROWS_MAX", 300)
    found = asyncio.run(in_tangled_segments(tmp_path, lambda url: offsets(FlightLink(url, retry_s=5).read(TICKET))))
    assert found == list(range(3_000)) and len(broken) == 2


def test_transient_messages_are_read_in_their_place(tmp_path: Path):
    async def read() -> list[int]:
        async with open_broker(str(tmp_path)) as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "s")
            for persistent in (True, False, True):
                await broker.publish("t", [b"m"] * 10, wherry.PublishOptions(persistent=persistent))
            await flush(broker)
            return [n async for batch in broker.history("t") for n in batch.column("offset").to_pylist()]

    assert asyncio.run(read()) == list(range(30))


def test_a_lost_segment_is_reported_and_no_reader_looks_for_it_for_ever(tmp_path: Path):
    with served(tmp_path) as node:
        assert node.node.flight_url is not None
        flights, broker = Flights(node.node.flight_url), node.node.broker
        flights.act("create-topic", name="t")
        flights.act("subscribe", topic="t", name="s")
        flights.put([payloads(*[bytes(1_000)] * 1_000)], topic="t")
        node.run(flush(broker))
        flights.put([payloads(b"in memory")], topic="t")
        for path in broker.shard.store.segment_paths():
            (tmp_path / path).unlink()
        with pytest.raises(flight.FlightServerError, match=r"corrupt: segments/.*missing"):
            flights.ticket(topic="t", stop=1_001)

        async def read() -> list[pa.RecordBatch]:
            return [batch async for batch in broker.history("t")]

        with pytest.raises(wherry.Corrupt, match="missing"):
            node.run(asyncio.wait_for(read(), 10))


def test_a_reader_that_leaves_while_nothing_fits_is_not_read_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "WINDOW", 100)
    with served(tmp_path) as node:
        assert node.node.flight_url is not None
        flights, broker = Flights(node.node.flight_url), node.node.broker
        flights.act("create-topic", name="t", keep="age", keep_ms=10**9)
        flights.put([payloads(*[b"m"] * 10_000)], topic="t")
        looks, window = threading.Semaphore(0), broker.window

        async def slow(*args: object, **more: object) -> object:
            looks.release()
            await asyncio.sleep(0.02)
            return await window(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(broker, "window", slow)
        ticket = {"topic": "t", "stop": 10_000, "where": {"headers": {"no": "such"}}}
        reader = flights.client.do_get(flight.Ticket(json.dumps(ticket)), flights.options)
        for _ in range(5):
            looks.acquire()
        reader.cancel()
        until(lambda: calls_of(node) == 0)
        seen = 0
        while looks.acquire(blocking=False):
            seen += 1
        time.sleep(0.1)
        assert seen < 50 and not looks.acquire(blocking=False)


def test_history_is_handed_over_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "STEP_BYTES", 50_000)
    monkeypatch.setattr(windows, "ROWS_MAX", 100)

    async def read() -> None:
        async with open_broker(str(tmp_path)) as broker:
            await broker.create_topic("t", keep="age", keep_ms=10**9)
            await broker.publish("t", [bytes(1_000)] * 2_000)
            await flush(broker)
            read_bytes, read_file = list[int](), broker.read_file

            def counted(path: str, offset: int, length: int) -> pa.Buffer:
                read_bytes.append(length)
                return read_file(path, offset, length)

            monkeypatch.setattr(broker, "read_file", counted)
            found = broker.history("t")
            await anext(found)
            before = sum(read_bytes)
            rows = 100 + sum([batch.num_rows async for batch in found])
            assert rows == 2_000 and before < sum(read_bytes), "the first batch came before all was read"

    asyncio.run(read())
