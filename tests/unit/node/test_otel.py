"""Spans of OpenTelemetry: one trace for the whole life of a message."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

import wherry
from tests.behaviour.world import START_MS, VirtualClock, in_loop, reader_of
from wherry.broker.metrics.tracing import Parent, TraceSpan, Tracing
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.model.schema import Message
from wherry.node.otel import OtelTracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


def recording() -> tuple[OtelTracer, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider), exporter


def check_trace(spans: tuple[ReadableSpan, ...]) -> None:
    for span in spans:
        assert span.parent is not None
        assert span.context is not None
        assert format_trace_id(span.context.trace_id) == TRACE
        assert format_span_id(span.parent.span_id) == PARENT


@pytest.mark.rows("A19")
@in_loop
async def test_publish_wait_deliver_retry_and_settle_are_one_trace():
    tracer, exporter = recording()
    clock = VirtualClock()
    broker = await start(MemoryEngine(), None, clock)
    Tracing(broker.shard, tracer)
    await broker.create_topic("jobs")
    reader = await reader_of(broker, "jobs", retry=wherry.Retry(attempts=2, first_ms=1_000, jitter=0.0))
    await broker.publish("jobs", Message(payload=b"m", headers={"traceparent": SAMPLED, "tracestate": "v=1"}))
    await (await reader.pull()).nack(error="boom")
    clock.advance(1_000)
    await (await reader.pull()).ack()
    await broker.close()
    spans = exporter.get_finished_spans()
    assert [span.name.removesuffix(" jobs") for span in spans] == [
        *("publish", "wait", "deliver", "settle"),
        *("retry", "deliver", "settle"),
    ]
    check_trace(spans)
    assert (spans[0].kind, spans[2].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (spans[4].start_time, spans[4].end_time) == (START_MS * 10**6, (START_MS + 1_000) * 10**6)
    assert [span.status.description for span in spans if span.name == "settle jobs"] == ["boom", None]


@pytest.mark.rows("A19")
@in_loop
async def test_a_dead_letter_is_the_end_of_the_same_trace():
    tracer, exporter = recording()
    broker = await start(MemoryEngine(), None, VirtualClock())
    Tracing(broker.shard, tracer)
    await broker.create_topic("jobs")
    reader = await reader_of(broker, "jobs")
    await broker.publish("jobs", Message(payload=b"m", headers={"traceparent": SAMPLED}))
    await (await reader.pull()).dead_letter(reason="poison")
    await broker.close()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans][-2:] == ["settle jobs", "dead letter jobs"]
    assert spans[-1].status.description == "poison"
    check_trace(spans)


@pytest.mark.rows("A19")
@in_loop
async def test_a_publish_that_another_caller_waits_for_is_traced_when_it_is_durable():
    tracer, exporter = recording()
    broker = await start(MemoryEngine(), None, VirtualClock())
    Tracing(broker.shard, tracer)
    await broker.create_topic("jobs")
    message = Message(payload=b"m", headers={"traceparent": SAMPLED})
    position, _ = await broker.submit("jobs", message, wherry.PublishOptions())
    assert exporter.get_finished_spans() == ()
    await broker.stored(position)
    await broker.close()
    assert [span.name for span in exporter.get_finished_spans()] == ["publish jobs"]


@pytest.mark.parametrize("traceparent", [f"00-{TRACE}-{PARENT}-00", "nonsense", "", f"00-{'0' * 32}-{PARENT}-01"])
def test_what_is_not_sampled_or_broken_makes_no_span(traceparent: str):
    tracer, exporter = recording()
    tracer.span(TraceSpan("publish t", Parent(traceparent), 1, 2, {}))
    assert exporter.get_finished_spans() == ()
