"""A reader on the same machine takes segments as files: the same rows as over Flight, even if files move or vanish."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.flights import Flights, payloads
from tests.integration.served import Served, served
from tests.integration.test_flight_log import flush
from wherry.broker.calls import log
from wherry.journal.disk.real_files import RealFiles
from wherry.model.errors import HistoryLost, NotFound, NotWaiting
from wherry.node.config import SecuritySection
from wherry.spark.link import FlightLink
from wherry.spark.read import nearby

ALL = ["offset", "id", "key", "priority", "due", "expires", "published", "headers", "payload", "partition"]


class Reader:
    """One topic, read both ways."""

    def __init__(self, node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        assert node.node.flight_url is not None
        self.node, self.url = node, node.node.flight_url
        self.flights, self.link = Flights(self.url), FlightLink(self.url)
        self.over_flight: list[tuple[int, int]] = []
        once = FlightLink.once

        def noted(link: FlightLink, ticket: dict[str, Any]) -> Iterator[pa.RecordBatch]:
            self.over_flight.append((ticket["start"], ticket["stop"]))
            return once(link, ticket)

        monkeypatch.setattr(FlightLink, "once", noted)

    def fill(self, count: int, begin: int = 0, **topic: Any) -> None:
        if begin == 0:
            self.flights.act("create-topic", name="t", keep="bytes", keep_bytes=1 << 40, **topic)
        numbers = range(begin, begin + count)
        batch = payloads(
            *[b"%d" % n * 50 for n in numbers],
            key=[f"user-{n % 7}" for n in numbers],
            id=[f"id-{n}" for n in numbers],
            headers=pa.array(
                [[("parity", "odd" if n % 2 else "even")] for n in numbers], pa.map_(pa.string(), pa.string())
            ),
        )
        self.flights.put([batch], topic="t")

    def flush(self) -> None:
        self.node.run(flush(self.node.node.broker))

    def files(self) -> list[Path]:
        broker = self.node.node.broker
        assert isinstance(broker.shard.files, RealFiles)
        return [broker.shard.files.root / path for path in broker.shard.store.segment_paths()]

    def read(self, *, files: bool, **ticket: Any) -> pa.Table:
        whole = {"topic": "t", "partition": 0, "start": 0, "columns": ALL, **ticket}
        self.over_flight.clear()
        return pa.Table.from_batches(list(self.link.read(whole, files=files)))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(nearby, "_far", set())
    with served(tmp_path) as node:
        yield Reader(node, monkeypatch)


@pytest.mark.rows("D2", "D25")
@pytest.mark.parametrize(
    "ticket",
    [
        {"stop": 3_000},
        {"start": 17, "stop": 1_234},
        {"stop": 3_000, "where": {"keys": ["user-3"]}},
        {"stop": 3_000, "where": {"headers": {"parity": "odd"}}, "columns": ["offset"]},
        {"start": 1_990, "stop": 2_010},
        {"start": 2_500, "stop": 2_500},
    ],
    ids=["whole", "range", "key", "header", "seam", "nothing"],
)
def test_files_and_flight_have_the_same_rows(reader: Reader, monkeypatch: pytest.MonkeyPatch, ticket: dict[str, Any]):
    monkeypatch.setattr(log, "WINDOW", 700)
    reader.fill(2_000)
    reader.flush()
    reader.fill(1_000, begin=2_000)  # stays in memory
    near = list(reader.link.read({"topic": "t", "start": 0, "columns": ALL, **ticket}, files=True))
    assert all(start >= 2_000 for start, _ in reader.over_flight), "what is in files does not come over Flight"
    far = list(reader.link.read({"topic": "t", "start": 0, "columns": ALL, **ticket}))
    assert [row for batch in near for row in batch.to_pylist()] == [row for batch in far for row in batch.to_pylist()]
    assert sum(batch.num_rows for batch in near) == sum(batch.num_rows for batch in far)


def test_messages_that_are_gone_are_left_out(reader: Reader):
    reader.flights.act("create-topic", name="t")
    reader.flights.act("subscribe", topic="t", name="s")
    reader.flights.put([payloads(*[b"%d" % n for n in range(1_000)])], topic="t")
    reader.flush()
    broker = reader.node.node.broker

    async def settle_some() -> None:
        async with await broker.consumer("t", "s") as consumer:
            delivery = await consumer.pull(500)
            await delivery.ack(range(0, 500, 2))

    reader.node.run(settle_some())
    found = reader.read(files=True, stop=1_000)
    assert reader.over_flight == []
    assert found.num_rows == 750
    assert found.equals(reader.read(files=False, stop=1_000))


def counted(reader: Reader, start: int, stop: int) -> int:
    rows = 0
    while start < stop:
        found = reader.flights.act("nearby", topic="t", partition=0, start=start, stop=stop)
        rows, start = rows + found["rows"], found["stop"]
    return rows


def test_the_number_of_messages_is_that_of_a_read_wherever_they_are(reader: Reader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "WINDOW", 170)
    chance = random.Random(5)
    reader.flights.act("create-topic", name="t")
    reader.flights.act("subscribe", topic="t", name="s")
    broker = reader.node.node.broker

    async def settle_some() -> None:
        async with await broker.consumer("t", "s") as consumer:
            delivery = await consumer.pull(chance.randrange(1, 300))
            rows = range(delivery.batch.num_rows)
            await delivery.ack([row for row in rows if chance.random() < 0.6])
        with suppress(NotFound, NotWaiting):  # it may be settled or on lease
            await broker.cancel("t", f"0-{published - 1}")

    assert counted(reader, 0, 100) == 0, "no message was ever published"
    published = 0
    for turn in range(12):
        count = chance.randrange(1, 300)
        reader.flights.put([payloads(*[b"%d" % n for n in range(count)])], topic="t")
        published += count
        reader.node.run(settle_some())
        if turn % 3 == 1:
            reader.flush()
        for _ in range(5):
            start, stop = chance.randrange(published), chance.randrange(published + 50)
            ticket = {"topic": "t", "start": start, "stop": max(start, stop), "columns": ["offset"]}
            assert counted(reader, start, stop) == sum(batch.num_rows for batch in reader.link.read(ticket))
    assert 0 < counted(reader, 0, published) < published


def test_a_file_that_is_gone_is_read_over_flight(reader: Reader, monkeypatch: pytest.MonkeyPatch):
    """Name files that are then missing: the broker may rewrite its segments before a reader opens them."""
    reader.fill(1_000)
    reader.flush()
    ask = FlightLink.ask

    def late(link: FlightLink, name: str, body: dict[str, Any], wait_ms: int = 0) -> dict[str, Any]:
        found = ask(link, name, body, wait_ms)
        if name == "nearby":
            found["files"] = [[f"{path}.gone", blocks] for path, blocks in found["files"]]
        return found

    monkeypatch.setattr(FlightLink, "ask", late)
    assert reader.read(files=True, stop=1_000)["offset"].to_pylist() == list(range(1_000))
    assert reader.over_flight == [(0, 1_000)]


def test_a_file_with_other_bytes_is_not_believed(reader: Reader, monkeypatch: pytest.MonkeyPatch):
    """Read other bytes: another machine behind a local address may have a file of that name."""
    reader.fill(1_000)
    reader.flush()
    monkeypatch.setattr(nearby, "_read", lambda folder, path, offset, length: pa.py_buffer(bytes(length)))
    assert reader.read(files=True, stop=1_000)["offset"].to_pylist() == list(range(1_000))
    assert reader.over_flight == [(0, 1_000)]


def test_a_folder_that_is_not_here_is_asked_for_once(reader: Reader, monkeypatch: pytest.MonkeyPatch):
    reader.fill(1_000)
    reader.flush()
    asked, ask = list[str](), FlightLink.ask

    def elsewhere(link: FlightLink, name: str, body: dict[str, Any], wait_ms: int = 0) -> dict[str, Any]:
        asked.append(name)
        return {**ask(link, name, body, wait_ms), "folder": "/no/such/folder"}

    monkeypatch.setattr(FlightLink, "ask", elsewhere)
    for _ in range(2):
        assert reader.read(files=True, stop=1_000)["offset"].to_pylist() == list(range(1_000))
    assert asked == ["nearby"]


def test_a_segment_that_is_lost_is_reported_by_the_broker(reader: Reader):
    reader.fill(1_000)
    reader.flush()
    for path in reader.files():
        path.unlink()
    with pytest.raises(Exception, match="missing"):
        reader.read(files=True, stop=1_000)


def test_history_that_is_gone_is_reported_where_that_is_asked_for(reader: Reader):
    reader.flights.act("create-topic", name="t")
    reader.flights.act("subscribe", topic="t", name="s")
    reader.flights.put([payloads(*[b"m"] * 10)], topic="t")
    reader.flights.act("advance", topic="t", subscription="s", offsets={"0": 5})
    with pytest.raises(HistoryLost):
        reader.read(files=True, stop=10, strict=True)


@pytest.mark.rows("D27")
def test_paths_of_files_are_returned_to_clients_that_may_read(tmp_path: Path):
    with served(tmp_path, security=SecuritySection(keys="on")) as node:
        assert node.node.flight_url is not None
        with pytest.raises(flight.FlightError):
            Flights(node.node.flight_url).act("nearby", topic="t", stop=1)


@pytest.mark.parametrize(
    "body", [{}, {"topic": "t"}, {"topic": "t", "stop": -1}, {"topic": "t", "stop": 1, "where": {}}]
)
def test_a_stretch_that_cannot_be_is_refused(reader: Reader, body: dict[str, Any]):
    reader.fill(1)
    with pytest.raises(flight.FlightError, match=r"nearby|stop"):
        reader.flights.act("nearby", **body)
