"""Bad clients: thousands of malformed requests, connections that drip, connections that do nothing.

The node answers what is wrong by 4xx, ends what takes too long, and serves the others meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.integration.served import Served, served
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.message import ARROW, JSON

AT_A_TIME = 16
SEED = 20_261_115
PUBLISH, PULL = "/v1/topics/jobs/messages", "/v1/topics/jobs/subscriptions/workers/pull"

IMPATIENT = Bounds(head_s=1.0, body_s=1.0, head_bytes=8 << 10, body_bytes=1 << 20, bodies_bytes=64 << 20)


def request(
    method: str = "POST", target: str = PUBLISH, body: bytes = b"", *headers: str, length: str | None = None
) -> bytes:
    size = str(len(body)) if length is None else length
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def arrow() -> bytes:
    batch = pa.record_batch({"payload": pa.array([b"x" * 50] * 20), "key": pa.array(["k"] * 20)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


JSON_TYPE, ARROW_TYPE = f"Content-Type: {JSON}", f"Content-Type: {ARROW}"
GOOD_JSON = msgspec.json.encode([{"payload": "x", "key": "k", "headers": {"a": "b"}}] * 3)
GOOD_ARROW = arrow()
CHUNKED = b"POST " + PUBLISH.encode() + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def noise(rng: random.Random, most: int = 40) -> bytes:
    return rng.randbytes(rng.randint(1, most))


def bad_head(rng: random.Random) -> bytes:
    """Make a head with bytes in it that no head may have."""
    head = bytearray(request("GET", "/v1/topics"))
    at = rng.randrange(len(head) - 4)
    head[at : at + rng.randint(0, 3)] = bytes(rng.choice(b"\x00\x01\x0b\x7f") for _ in range(rng.randint(1, 3)))
    return bytes(head)


def bad_line(rng: random.Random) -> bytes:
    line = rng.choice(
        [
            b"GET",
            b"GET  HTTP/1.1",
            b"GET / HTTP/9.9",
            b"GET / HTTQ/1.1",
            b"get / HTTP/1.1",
            b"G\x00T / HTTP/1.1",
            b"/ HTTP/1.1",
            noise(rng),
        ]
    )
    return line + b"\r\nHost: localhost\r\n\r\n"


def bad_length(rng: random.Random) -> bytes:
    length = rng.choice(["-1", "+5", "0x10", "1e3", "5 5", "5,5", "", "abc", "9" * 30, str((1 << 20) + 1), "1_0", "٣"])
    return request(body=b"hello", length=length.encode().decode("latin-1"))


def bad_headers(rng: random.Random) -> bytes:
    extra = rng.choice(
        [
            "Content-Length: 7",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip",
            "Host: other",
            "No colon",
            ": empty",
            "Sp ace: x",
            "Tab\t: x",
            "Null: a\0b",
            "A: " + "x" * 9_000,
            "A: b\r\n folded",
            "\r\n".join(f"A{number}: b" for number in range(600)),
        ]
    )
    return request("POST", PUBLISH, b"hello", extra)


def bad_chunks(rng: random.Random) -> bytes:
    body = rng.choice(
        [
            b"zz\r\n",
            b"-5\r\nhello\r\n",
            b"5\r\nhelloworld\r\n",
            b"5\nhello\r\n",
            b"ffffffffffffffff\r\n",
            b"200000\r\n",
            b"5" + b";x" * 500 + b"\r\n",
            b"0\r\nbad trailer\r\n\r\n",
            b"1\r\nx\r\n" * 3 + b"\x00\r\n",
            b"0x5\r\nhello\r\n",
        ]
    )
    return CHUNKED + body


def bad_json(rng: random.Random) -> bytes:
    """Make JSON that is cut or has bytes in it that break it."""
    kind = rng.randrange(4)
    if kind == 0:
        return request("POST", PUBLISH, GOOD_JSON[: rng.randrange(1, len(GOOD_JSON))], JSON_TYPE)
    if kind == 1:
        body = bytearray(GOOD_JSON)
        body[rng.randrange(len(body))] = 0xFF
        return request("POST", PUBLISH, bytes(body), JSON_TYPE)
    if kind == 2:
        return request("POST", PUBLISH, b"[" * rng.randint(1, 50_000), JSON_TYPE)
    wrong = [
        {"payload": 1, "nope": 1},
        {"priority": -1, "payload": ""},
        {},
        [],
        7,
        None,
        "x",
        {"payload": "", "id": ""},
    ]
    return request("POST", PUBLISH, msgspec.json.encode(rng.choice(wrong)), JSON_TYPE)


def bad_arrow(rng: random.Random) -> bytes:
    kind = rng.randrange(3)
    if kind == 0:
        return request("POST", PUBLISH, GOOD_ARROW[: rng.randrange(1, len(GOOD_ARROW) - 40)], ARROW_TYPE)
    if kind == 1:
        return request("POST", PUBLISH, noise(rng, 400), ARROW_TYPE)
    body = bytearray(GOOD_ARROW)  # lengths and offsets of the metadata
    for _ in range(8):
        body[rng.randrange(0, 300)] ^= 1 << rng.randrange(8)
    return request("POST", PUBLISH, bytes(body) + b"\x01", ARROW_TYPE)


def bad_target(rng: random.Random) -> bytes:
    target = rng.choice(
        [
            "/v1/nothing",
            "/v1/topics/none",
            "/v1/topics/%00",
            "/v1/topics/%ff%fe/messages",
            "/v1/topics/jobs/messages?start=-1",
            "/v1/topics/jobs/messages?limit=99999999999999999999999999",
            "/v1/topics/jobs/messages?partition=%ff",
            "/v1/topics/jobs/search?" + "header=a&" * 120,
            "/v1/topics/jobs/search?key=%ED%A0%80&limit=0",
            "/docs/..%2f..%2f..%2fetc%2fpasswd",
            "/../../etc/passwd",
            "//" + "/" * rng.randint(1, 500),
            "http://[::1/",
            "*",
            "/v1/topics/" + "%41" * 1_025 + "/dead",
            "/v1/topics?" + "a=b&" * rng.randint(1, 300),
        ]
    )
    return request("GET", target)


def bad_method(rng: random.Random) -> bytes:
    return request(rng.choice(["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]), "/healthz")


def bad_query(rng: random.Random) -> bytes:
    query = rng.choice(
        ["messages=0", "bytes=-1", "wait_ms=1e9", "consumer=%20", "columns=x", "x=1", "messages=1&messages=2"]
    )
    return request("POST", f"{PULL}?{query}")


def bad_settle(rng: random.Random) -> bytes:
    receipts = rng.choice([[], ["x"], ["1:2-1"], ["9" * 30], ["77:1"], "77", None, [1], ["1:0-9999999999999"]])
    name = rng.choice(["ack", "nack", "dead-letter", "release", "renew"])
    body = msgspec.json.encode({"receipts": receipts})
    return request("POST", f"/v1/topics/jobs/subscriptions/workers/{name}", body, JSON_TYPE)


def cut_short(rng: random.Random) -> bytes:
    """Return the beginning of a good request, and then nothing more."""
    whole = request("POST", PUBLISH, GOOD_JSON, JSON_TYPE)
    return whole[: rng.randrange(1, len(whole))]


MUTATIONS: list[Callable[[random.Random], bytes]] = [
    bad_head,
    bad_line,
    bad_length,
    bad_headers,
    bad_chunks,
    bad_json,
    bad_arrow,
    bad_target,
    bad_method,
    bad_query,
    bad_settle,
]


async def answered(port: int, data: bytes, *, half: bool = False) -> int:
    """Return the status of the first answer; 0 if the node closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if half:
            writer.write_eof()
        async with asyncio.timeout(30):
            line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def prepare(node: Served) -> None:
    await node.node.broker.create_topic("jobs")
    await node.node.broker.subscribe("jobs", "workers")


async def at_rest(node: Served) -> tuple[int, int, int, int]:
    """Return connections, requests, waits and bytes that are still counted, once all clients have left."""
    server = node.node.server
    for _ in range(100):
        if not server.connections:
            break
        await asyncio.sleep(0.1)
    return server.connections, server.requests, server.waits, server.bodies_bytes


@pytest.mark.parametrize("requests", [2_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_malformed_requests_are_answered_4xx(tmp_path: Path, caplog: pytest.LogCaptureFixture, requests: int):
    rng = random.Random(SEED)
    attempts = [(mutate.__name__, mutate(rng)) for mutate in rng.choices(MUTATIONS, k=requests)]
    seen: Counter[int] = Counter()
    odd: list[tuple[str, int, bytes]] = []

    async def main(port: int) -> None:
        queue = iter(attempts)

        async def worker() -> None:
            for name, data in queue:
                status = await answered(port, data)
                seen[status] += 1
                if not 400 <= status < 500:
                    odd.append((name, status, data[:200]))

        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
        short = [cut_short(rng) for _ in range(200)]
        ends = await asyncio.gather(*(answered(port, data, half=bool(n % 2)) for n, data in enumerate(short)))
        assert set(ends) <= {0, 408}, Counter(ends)
        assert await answered(port, request("POST", PUBLISH, GOOD_JSON, JSON_TYPE)) == 201

    with served(tmp_path / "node", IMPATIENT) as node:
        node.run(prepare(node))
        asyncio.run(main(node.node.port))
        assert not odd, odd[:10]
        assert node.run(at_rest(node)) == (0, 0, 0, 0)
        assert node.node.broker.stats("jobs").messages == 3, "nothing of what was refused was stored"
    print(f"answers by status: {dict(sorted(seen.items()))}")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def working(port: int, requests: int) -> float:
    """Publish one by one, each with success; return the 99th percentile in milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data, times = request("POST", PUBLISH, b'{"payload": "work"}', JSON_TYPE), []
    for _ in range(requests):
        began = time.perf_counter()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 ")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.002)
    writer.close()
    return sorted(times)[int(len(times) * 0.99)] * 1e3


def test_slow_and_idle_connections_do_not_stop_a_working_client(tmp_path: Path):
    async def drip(port: int, stop: asyncio.Event) -> None:
        """Send a head, a byte at a time, for ever: over a new connection for each that is ended."""
        data = b"POST / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000
        while not stop.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for at in range(len(data)):
                    writer.write(data[at : at + 1])
                    await asyncio.sleep(0.1)
                    if stop.is_set() or reader.at_eof():
                        break
            except ConnectionError:
                pass
            finally:
                writer.close()

    async def main(port: int) -> tuple[float, float, float]:
        before = await working(port, 500)
        stop = asyncio.Event()
        slow = [asyncio.create_task(drip(port, stop)) for _ in range(200)]
        await asyncio.sleep(0.5)
        dripped = await working(port, 500)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1_000)]
        both = await working(port, 500)
        stop.set()
        await asyncio.gather(*slow)
        for _, writer in idle:
            writer.close()
        return before, dripped, both

    with served(tmp_path / "node", Bounds(head_s=2.0)) as node:
        node.run(prepare(node))
        before, dripped, both = asyncio.run(main(node.node.port))
        assert node.run(at_rest(node)) == (0, 0, 0, 0)
        assert node.node.broker.stats("jobs").messages == 1_500
    print(
        f"publish of one message, p99: {before:.1f} ms alone, {dripped:.1f} ms beside 200 that drip, "
        f"{both:.1f} ms beside these and 1,000 idle ones"
    )
