"""The figures of a node that serves: scraped over HTTP, and flushed to sinks."""

import asyncio
import functools
import gzip
import http.server
import importlib
import json
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import wherry
from wherry.model.catalog.key import Right
from wherry.node.config import Config, MetricsSection, SecuritySection, ServerSection, StorageSection
from wherry.node.node import Node
from wherry.node.sinks.jsonl import JsonLines
from wherry.node.sinks.sink import MetricSample, find
from wherry.security.keys import make
from wherry.wire.http.app import App, serve

DOC = Path(__file__).parents[2] / "docs/metrics.md"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def config(folder: Path, *sinks: str, keys: bool = False) -> Config:
    return Config(
        server=ServerSection(port=0),
        storage=StorageSection(path=str(folder / "data")),
        security=SecuritySection(keys="on" if keys else "off"),
        metrics=MetricsSection(sinks=sinks, flush_s=0.1),
    )


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    return run


async def ask(node: Node, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body of an answer."""
    request = urllib.request.Request(node.url + path, body, {k.replace("_", "-"): v for k, v in headers.items()})

    def send() -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.headers["content-type"], answer.read().decode()
        except urllib.error.HTTPError as fault:
            with fault:
                return fault.code, fault.headers["content-type"], fault.read().decode()

    return await asyncio.to_thread(send)


async def scrape(node: Node) -> dict[str, Metric]:
    status, _, text = await ask(node, "/metrics")
    assert status == 200
    return {family.name: family for family in parse_text(text)}


def value(families: dict[str, Metric], name: str, sample: str = "", **labels: str) -> float:
    found = [s.value for s in families[name].samples if s.name == (sample or s.name) and s.labels == labels]
    assert len(found) == 1, f"{name}: {found}"
    return float(found[0])


@pytest.mark.rows("D18")
@in_loop
async def test_prometheus_reads_what_happened(tmp_path: Path):
    async with Node(config(tmp_path)) as node:
        await node.broker.create_topic("jobs")
        await node.broker.subscribe("jobs", 'with "quotes"\\')
        for _ in range(3):
            assert (await ask(node, "/v1/topics/jobs/messages", b"m", content_type="text/plain"))[0] == 201
        assert (await ask(node, "/v1/topics/unheard-of/messages", b"m"))[0] == 404
        assert (await ask(node, "/nowhere/at/all"))[0] == 404
        families = await scrape(node)
    assert value(families, "wherry_messages_published", topic="jobs") == 3
    here = {"topic": "jobs", "subscription": 'with "quotes"\\'}
    assert value(families, "wherry_subscription_ready_messages", **here) == 3
    for name in ("wherry_publish_seconds", "wherry_journal_sync_seconds"):
        count, total = value(families, name, f"{name}_count"), value(families, name, f"{name}_sum")
        assert count >= 3
        assert 0 < total < 30
        assert value(families, name, f"{name}_bucket", le="+Inf") == count
    requests, route = families["wherry_http_request_seconds"], "POST /v1/topics/{topic}/messages"
    counts = {(s.labels["route"], s.labels["status"]): s.value for s in requests.samples if s.name.endswith("_count")}
    assert counts == {(route, "2xx"): 3, (route, "4xx"): 1, ("(none)", "4xx"): 1}
    assert value(families, "process_resident_memory_bytes") > 1 << 20
    assert value(families, "process_open_fds") > 3


@pytest.mark.rows("D18")
@in_loop
async def test_openmetrics_where_it_is_asked_for(tmp_path: Path):
    wanted = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    async with Node(config(tmp_path)) as node:
        await node.broker.create_topic("jobs")
        _, kind, text = await ask(node, "/metrics", Accept=wanted)
        plain = await ask(node, "/metrics", Accept="text/html, application/openmetrics-text;version=x;q=0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families["wherry_messages_published"].type == "counter"
    assert families["wherry_publish_seconds"].type == "histogram"
    assert plain[1].startswith("text/plain; version=0.0.4")


@pytest.mark.rows("A20")
@in_loop
async def test_the_lag_of_a_slow_consumer_is_true_in_messages_and_seconds(tmp_path: Path):
    here = {"topic": "jobs", "subscription": "slow"}
    async with Node(config(tmp_path)) as node:
        await node.broker.create_topic("jobs")
        await node.broker.subscribe("jobs", "slow")
        consumer = await node.broker.consumer("jobs", "slow")
        published = []
        for number in range(6):
            await node.broker.publish("jobs", str(number))
            published.append(time.time())
            await asyncio.sleep(0.2)
        for settled in range(6):
            before = time.time() - published[settled]
            families = await scrape(node)
            after = time.time() - published[settled]
            assert value(families, "wherry_subscription_lag_messages", **here) == 6 - settled
            assert before - 0.01 <= value(families, "wherry_subscription_lag_seconds", **here) <= after + 0.1
            await (await consumer.pull(1)).ack()
        families = await scrape(node)
        assert value(families, "wherry_subscription_lag_messages", **here) == 0
        assert value(families, "wherry_subscription_lag_seconds", **here) == 0


@in_loop
async def test_figures_name_topics_so_they_need_a_key_for_all(tmp_path: Path):
    async with Node(config(tmp_path, keys=True)) as node:
        tokens = []
        for pattern in ("jobs", "*"):
            made = make(f"reads {pattern}", [Right("consume", pattern)], now_ms=time.time_ns() // 1_000_000)
            await node.broker.put_key(made.key)
            tokens.append(made.token)
        assert (await ask(node, "/metrics"))[0] == 401
        assert [(await ask(node, "/metrics", Authorization=f"Bearer {t}"))[0] for t in tokens] == [403, 200]


@pytest.mark.rows("A19")
@in_loop
async def test_the_trace_context_of_a_request_reaches_the_consumer(tmp_path: Path):
    async with Node(config(tmp_path)) as node:
        await node.broker.create_topic("jobs")
        await node.broker.subscribe("jobs", "s")
        await ask(node, "/v1/topics/jobs/messages", b'["a", "b"]', content_type="text/plain", traceparent=PARENT)
        consumer = await node.broker.consumer("jobs", "s")
        (got,) = await consumer.pull()
        assert got.headers["traceparent"] == PARENT


@pytest.mark.rows("G25")
@in_loop
async def test_statsd_gets_packets_of_bounded_size(tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.03)
        sink = f"statsd?port={server.getsockname()[1]}&prefix=my.&packet_bytes=300"
        async with Node(config(tmp_path, sink)) as node:
            await node.broker.create_topic("jobs")
            await node.broker.publish("jobs", [b"m"] * 5)
            seen: list[bytes] = []
            packets: list[bytes] = []
            while b"my.wherry_messages_published_total:5|c|#topic:jobs" not in seen:
                packets += await asyncio.to_thread(received, server)
                seen = b"\n".join(packets).split(b"\n")
    assert max(map(len, packets)) <= 300
    line = re.compile(rb"my\.[a-z_]+:[-+.e0-9]+\|[cg](\|#[a-z_]+:[^,|#]*(,[a-z_]+:[^,|#]*)*)?")
    assert [each for each in seen if not line.fullmatch(each)] == []


def received(server: socket.socket) -> list[bytes]:
    packets = []
    while True:
        try:
            packets.append(server.recv(65_536))
        except TimeoutError:
            return packets


@pytest.mark.rows("G25")
@in_loop
async def test_json_lines_with_the_last_figures_of_all(tmp_path: Path):
    file = tmp_path / "figures.jsonl"
    async with Node(config(tmp_path, f"jsonl?path={file}")) as node:
        await node.broker.create_topic("jobs")
        await node.broker.publish("jobs", [b"m"] * 7)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    published = [line for line in lines if line["name"] == "wherry_messages_published_total"]
    assert (published[-1]["labels"], published[-1]["value"], published[-1]["kind"]) == ({"topic": "jobs"}, 7, "counter")
    (timing,) = [line for line in lines if line["name"] == "wherry_publish_seconds"][-1:]
    assert timing["count"] == timing["buckets"][-1][1] == 1


def test_json_lines_move_full_files_aside(tmp_path: Path):
    sink, file = JsonLines(), tmp_path / "f"
    sink.open({"path": str(file), "bytes": "100", "files": "2"})
    for number in range(5):
        sink.flush([MetricSample("name", "gauge", {}, float(number))])
    sink.close()
    values = {path.name: msgspec.json.decode(path.read_bytes())["value"] for path in tmp_path.iterdir()}
    assert values == {"f": 4, "f.1": 3, "f.2": 2}


class Posted(NamedTuple):
    path: str
    headers: Message
    body: bytes


@contextmanager
def collector() -> Iterator[tuple[str, list[Posted]]]:
    """Run a collector of OpenTelemetry that only keeps; yield its address, and what was posted."""
    posted: list[Posted] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            posted.append(Posted(self.path, self.headers, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.rows("G25")
@in_loop
async def test_otlp_is_posted_to_a_collector(tmp_path: Path):
    with collector() as (url, posted):
        async with Node(config(tmp_path, f"otlp?url={url}/v1/metrics&header.x-tenant=me")) as node:
            await node.broker.create_topic("jobs")
    assert (posted[-1].path, posted[-1].headers["x-tenant"]) == ("/v1/metrics", "me")
    assert "resourceMetrics" in json.loads(posted[-1].body)


@pytest.mark.rows("A19")
@in_loop
async def test_spans_are_posted_to_a_collector(tmp_path: Path):
    with collector() as (url, posted):
        wanted = MetricsSection(traces=True, traces_url=f"{url}/v1/traces")
        async with Node(msgspec.structs.replace(config(tmp_path), metrics=wanted)) as node:
            await node.broker.create_topic("jobs")
            await node.broker.subscribe("jobs", "s")
            await ask(node, "/v1/topics/jobs/messages", b"m", content_type="text/plain", traceparent=PARENT)
            _, _, text = await ask(node, "/v1/topics/jobs/subscriptions/s/pull", b"")
            receipt = json.loads(text)["messages"][0]["receipt"]
            settled = json.dumps({"receipts": [receipt]}).encode()
            await ask(node, "/v1/topics/jobs/subscriptions/s/ack", settled, content_type="application/json")
    (request,) = [ExportTraceServiceRequest.FromString(_unpacked(each)) for each in posted]
    spans = request.resource_spans[0].scope_spans[0].spans
    assert [span.name.split()[0] for span in spans] == ["publish", "wait", "deliver", "settle"]
    assert {span.trace_id.hex() for span in spans} == {PARENT.split("-")[1]}


def _unpacked(posted: Posted) -> bytes:
    return gzip.decompress(posted.body) if posted.headers["content-encoding"] == "gzip" else posted.body


@in_loop
async def test_a_broker_that_measures_nothing_has_no_metrics():
    async with wherry.open() as broker, serve(App(broker)) as server:
        port = await server.listen("127.0.0.1", 0)
        with pytest.raises(urllib.error.HTTPError, match="404") as fault:
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics", timeout=10)
        fault.value.close()


@pytest.mark.rows("G25")
@in_loop
async def test_the_sink_of_the_page_is_found_and_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install the sink as pip would do it: a module, and beside it metadata with the entry point."""
    page = DOC.read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (declared,) = re.findall(r'\[project\.entry-points\."(wherry\.metric_sinks)"\]\n(counts) = "(.*?)"', page)
    metadata = tmp_path / "counts-1.0.dist-info"
    metadata.mkdir()
    (tmp_path / "counts.py").write_text(source)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counts\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{declared[0]}]\n{declared[1]} = {declared[2]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        out = tmp_path / "out"
        assert find(f"counts?path={out}").options == {"path": str(out)}
        async with Node(config(tmp_path, f"counts?path={out}")) as node:
            await node.broker.create_topic("jobs")
            await node.broker.publish("jobs", [b"m"] * 3)
        assert "wherry_messages_published_total {'topic': 'jobs'} 3.0" in out.read_text().splitlines()
    finally:
        sys.modules.pop("counts", None)
