"""One trace over the life of a message, whichever wire it comes by: publish, wait, deliver, retry, dead letter."""

from __future__ import annotations

import itertools
import json
import struct
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

import wherry
from tests.amqp import raw as amqp
from tests.integration.flights import Flights, Pushed, payloads, until
from tests.integration.served import Served, served
from tests.stomp import raw as stomp
from wherry.broker.metrics.tracing import Tracing
from wherry.node.otel import OtelTracer

pytestmark = pytest.mark.rows("A19")

NUMBERS = itertools.count(1)
TWICE = wherry.Retry(attempts=2, first_ms=0, cap_ms=0, jitter=0)
LIFE = [
    *("publish", "wait", "deliver", "settle"),
    *("retry", "deliver", "settle", "dead letter"),
]


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, spans: InMemorySpanExporter) -> Iterator[Served]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))

    async def trace(node: Served) -> None:
        Tracing(node.node.broker.shard, OtelTracer(provider))

    with served(tmp_path_factory.mktemp("node")) as found:
        found.run(trace(found))
        yield found


@pytest.fixture
def parent() -> str:
    """Return the trace context of a producer, another for each test."""
    number = next(NUMBERS)
    return f"00-{number:032x}-{number:016x}-01"


def of_trace(spans: InMemorySpanExporter, parent: str) -> list[ReadableSpan]:
    _, trace, span, _ = parent.split("-")
    found = [each for each in spans.get_finished_spans() if format_trace_id(each.context.trace_id) == trace]
    assert all(each.parent is not None and format_span_id(each.parent.span_id) == span for each in found)
    return found


def check_life(spans: InMemorySpanExporter, parent: str, topic: str, error: str) -> None:
    until(lambda: len(of_trace(spans, parent)) >= len(LIFE))
    found = of_trace(spans, parent)
    assert sorted(each.name for each in found) == sorted(f"{part} {topic}" for part in LIFE)
    assert {each.status.description for each in found if each.name == f"settle {topic}"} == {error}
    begun = [(each.start_time or 0, each.name) for each in found]
    starts = {name: at for at, name in sorted(begun, reverse=True)}
    order = [starts[f"{part} {topic}"] for part in ("publish", "wait", "deliver", "settle", "retry", "dead letter")]
    assert order == sorted(order)


def make(node: Served, topic: str) -> None:
    async def made() -> None:
        await node.node.broker.create_topic(topic)
        await node.node.broker.subscribe(topic, "s", retry=TWICE)

    node.run(made())


def test_over_http(node: Served, spans: InMemorySpanExporter, parent: str):
    make(node, "http")

    def ask(path: str, body: Any, **headers: str) -> Any:
        at = f"{node.node.url}/v1/topics/http{path}"
        request = urllib.request.Request(at, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    ask("/messages", {"payload": "a"}, traceparent=parent, tracestate="v=1")
    for _ in range(2):
        (message,) = ask("/subscriptions/s/pull", None)["messages"]
        assert message["headers"] == {"traceparent": parent, "tracestate": "v=1"}
        ask("/subscriptions/s/nack", {"receipts": [message["receipt"]], "error": "bad"})
    check_life(spans, parent, "http", "bad")


def test_over_flight(node: Served, spans: InMemorySpanExporter, parent: str):
    assert node.node.flight_url is not None
    make(node, "flight")
    flights = Flights(node.node.flight_url)
    headers = pa.array([[("traceparent", parent)]], pa.map_(pa.string(), pa.string()))
    flights.put([payloads(b"a", headers=headers)], topic="flight")
    stream = Pushed(flights, topic="flight", subscription="s")
    for number in range(2):
        stream.send(credit=1)
        batch = stream.next()
        assert batch.column("headers").to_pylist() == [[("traceparent", parent)]]
        stream.send(nack=[str(batch.column("lease")[0].as_py())], error="bad", id=number)
        assert stream.next() == {"done": number}
    stream.end()
    check_life(spans, parent, "flight", "bad")


def table(**texts: str) -> bytes:
    """Make a table of AMQP with long strings."""
    return b"".join(
        amqp.short(name.replace("_", "-")) + b"S" + amqp.long(text.encode()) for name, text in texts.items()
    )


def test_over_amqp(node: Served, spans: InMemorySpanExporter, parent: str):
    assert node.node.amqp_url is not None
    limit = table(x_queue_type="quorum") + amqp.short("x-delivery-limit") + b"I" + struct.pack(">i", 1)
    with amqp.Raw(node.node.amqp_url).opened() as client:
        client.call(1, amqp.QUEUE_DECLARE, b"\x00\x00" + amqp.short("amqp") + b"\x02" + amqp.long(limit))
        client.expect(amqp.QUEUE_DECLARE_OK)
        client.publish("amqp", b"a", b"\x20\x00" + amqp.long(table(traceparent=parent)))
        for _ in range(2):
            while True:
                client.call(1, amqp.GET, b"\x00\x00" + amqp.short("amqp") + b"\x00")
                if (got := client.next()).method == amqp.GET_OK:
                    break
            assert parent.encode() in client.next().payload, "the consumer has it too"
            client.next()
            client.call(1, amqp.NACK, got.arguments[:8] + b"\x02")
        check_life(spans, parent, "amqp", "requeued")


def test_over_stomp(node: Served, spans: InMemorySpanExporter, parent: str):
    assert node.node.stomp_url is not None
    terms = {"x_queue_type": "quorum", "x_delivery_limit": "1", "durable": "true", "auto_delete": "false"}
    with stomp.Raw(int(node.node.stomp_url.rpartition(":")[2])) as client:
        client.connect()
        client.done("SEND", b"a", destination="/queue/stomp", traceparent=parent, persistent="true", **terms)
        client.send("SUBSCRIBE", id="1", destination="/queue/stomp", ack="client-individual", **terms)
        for _ in range(2):
            frame = client.expect("MESSAGE")
            assert frame.headers["traceparent"] == parent
            client.send("NACK", id=frame.headers["ack"])
        check_life(spans, parent, "stomp", "requeued")


def test_over_the_python_client(node: Served, spans: InMemorySpanExporter, parent: str):
    make(node, "client")
    with wherry.connect_sync(node.node.url) as client:
        client.publish("client", [wherry.Message(payload=b"a", headers={"traceparent": parent})])
        for _ in range(2):
            with pytest.raises(ValueError, match="bad"), client.consumer("client", "s") as consumer:
                for message in consumer:
                    assert message.headers == {"traceparent": parent}
                    raise ValueError("bad")
    check_life(spans, parent, "client", "ValueError: bad")
