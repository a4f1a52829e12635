"""What becomes of a traced message, as spans."""

import logging

import pyarrow as pa
import pytest

import wherry
from tests.behaviour.world import VirtualClock, in_loop, reader_of
from wherry.broker.metrics import tracing
from wherry.broker.metrics.tracing import (
    Parent,
    TraceSpan,
    Tracing,
    parents,
)
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.model.schema import MESSAGE, Message

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-01"


class Recorder:
    """A tracer that only remembers."""

    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []

    def span(self, span: TraceSpan) -> None:
        self.spans.append(span)

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


class Broken:
    def span(self, span: TraceSpan) -> None:
        raise RuntimeError("no spans today")


async def opened(tracer: tracing.Tracer) -> tuple[wherry.Broker, VirtualClock]:
    clock = VirtualClock()
    broker = await start(MemoryEngine(), None, clock)
    await broker.create_topic("t")
    Tracing(broker.shard, tracer)
    return broker, clock


def traced(payload: bytes = b"m", parent: str = PARENT) -> Message:
    return Message(payload=payload, headers={"a": "1", "traceparent": parent, "tracestate": "x=1"})


def column(*rows: dict[str, str] | None) -> pa.Array:
    return pa.array([None if row is None else list(row.items()) for row in rows], MESSAGE.field("headers").type)


def test_rows_are_found_by_their_context():
    one, two = {"traceparent": "p", "b": "2"}, {"a": "1", "traceparent": "q", "tracestate": "s"}
    headers = column(None, one, {}, two, {"a": "1"}, one)
    assert {parent: rows.tolist() for parent, rows in parents(headers).items()} == {
        Parent("p"): [1, 5],
        Parent("q", "s"): [3],
    }
    assert {parent: rows.tolist() for parent, rows in parents(headers.slice(2)).items()} == {
        Parent("q", "s"): [1],
        Parent("p"): [3],
    }
    assert parents(column(None, None)) == parents(column({"a": "1"}, {})) == {}


@in_loop
async def test_a_message_that_fails_once_and_is_done_then():
    recorder = Recorder()
    broker, clock = await opened(recorder)
    reader = await reader_of(broker, "t", retry=wherry.Retry(attempts=5))
    await broker.publish("t", [traced(), b"another"])
    clock.advance(500)
    await (await reader.pull()).nack(error="boom")
    clock.advance(4_000)
    await (await reader.pull()).ack()
    await broker.close()
    expected = ["publish t", "wait t", "deliver t", "settle t", "retry t", "deliver t", "settle t"]
    assert recorder.names() == expected
    assert {span.parent for span in recorder.spans} == {Parent(PARENT, "x=1")}
    seconds = {span.name: (span.end_us - span.start_us) / 1e6 for span in recorder.spans[:5]}
    assert (seconds["wait t"], seconds["retry t"]) == (0.5, 4.0)
    assert [span.error for span in recorder.spans if span.name == "settle t"] == ["boom", ""]
    assert recorder.spans[5].attributes["wherry.attempt"] == 2


@in_loop
async def test_a_message_that_dies():
    recorder = Recorder()
    broker, _ = await opened(recorder)
    reader = await reader_of(broker, "t", retry=wherry.Retry(attempts=1, first_ms=0))
    await broker.publish("t", traced())
    await (await reader.pull()).nack(error="boom")
    await broker.close()
    assert recorder.names() == ["publish t", "wait t", "deliver t", "settle t", "dead letter t"]
    assert recorder.spans[-1].error == "1 failed deliveries"


@in_loop
async def test_a_lease_that_ends_by_itself_is_a_failure():
    recorder = Recorder()
    broker, clock = await opened(recorder)
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=wherry.Retry(attempts=5, first_ms=0))
    await broker.publish("t", traced())
    await reader.pull()
    clock.advance(2_000)
    await (await reader.pull()).ack()
    await broker.close()
    assert sorted(s.error for s in recorder.spans if s.name == "settle t") == ["", "the lease expired"]
    assert "retry t" in recorder.names()


@in_loop
async def test_messages_that_do_not_fit_or_expire_are_traced_without_a_delivery():
    recorder = Recorder()
    broker, clock = await opened(recorder)
    await broker.create_topic("full", messages_max=1, overflow="dead-letter")
    await broker.publish("full", b"fits")
    await broker.publish("full", traced())
    await broker.create_topic("old", expired="dead-letter")
    await broker.subscribe("old", "s")
    message = Message(payload=b"m", headers={"traceparent": PARENT}, expires_ms=clock.now_ms + 1_000)
    await broker.publish("old", message)
    clock.advance(2_000)
    broker.stats("old")
    await broker.close()
    dead = [(span.name, span.error) for span in recorder.spans if span.name.startswith("dead")]
    assert [name for name, _ in dead] == ["dead letter full", "dead letter old"]
    assert dead[1][1] == "expired"


@in_loop
async def test_what_expires_after_it_failed_is_not_shown_as_done():
    recorder = Recorder()
    broker, clock = await opened(recorder)
    reader = await reader_of(broker, "t")
    holder = await reader_of(broker, "t", "holder")
    message = Message(payload=b"m", headers={"traceparent": PARENT}, expires_ms=clock.now_ms + 5)
    await broker.publish("t", message)
    await (await reader.pull()).nack(delay_ms=1_000)
    await holder.pull()
    clock.advance(5)
    assert broker.stats("t").counters["expired"] == 1
    await broker.close()
    settled = [span.attributes["wherry.outcome"] for span in recorder.spans if span.name == "settle t"]
    assert settled == ["failed"]


@in_loop
async def test_messages_of_one_parent_share_a_span():
    recorder = Recorder()
    broker, _ = await opened(recorder)
    reader = await reader_of(broker, "t")
    await broker.publish("t", [traced(), traced(), traced(parent=OTHER), b"plain"])
    await (await reader.pull()).ack([0, 2])
    await broker.close()
    counts = [
        (span.name, span.parent.traceparent[-4], span.attributes.get("messaging.batch.message_count", 1))
        for span in recorder.spans
        if not span.name.startswith(("wait", "deliver"))
    ]
    assert counts == [("publish t", "1", 2), ("publish t", "2", 1), ("settle t", "1", 1), ("settle t", "2", 1)]


@in_loop
async def test_messages_without_a_context_leave_no_trace():
    recorder = Recorder()
    broker, _ = await opened(recorder)
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"plain", Message(payload=b"m", headers={"a": "1"})])
    got = await reader.pull()
    await got.ack([0])
    await got.dead_letter([1])
    await broker.close()
    assert recorder.spans == []


@in_loop
async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing, "HELD_MAX", 2)
    monkeypatch.setattr(tracing, "TRACED_MAX", 3)
    recorder = Recorder()
    broker, _ = await opened(recorder)
    reader = await reader_of(broker, "t")
    await broker.publish("t", [traced() for _ in range(5)])
    await (await reader.pull()).ack()
    await broker.close()
    counts = {span.name: span.attributes["messaging.batch.message_count"] for span in recorder.spans}
    assert counts == {"publish t": 3, "wait t": 3, "deliver t": 3, "settle t": 2}


@in_loop
async def test_a_tracer_that_fails_fails_no_call(caplog: pytest.LogCaptureFixture):
    broker, _ = await opened(Broken())
    reader = await reader_of(broker, "t")
    with caplog.at_level(logging.ERROR, "wherry.tracing"):
        await broker.publish("t", traced())
        await (await reader.pull()).ack()
    assert broker.shard.tracing is None
    assert broker.stats("t").subscriptions[0].lag == 0
    assert len(caplog.records) == 1
    await broker.close()
