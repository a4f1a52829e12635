"""The native wire on a real node: the upgrade over TCP, TLS and a Unix socket; keys, bounds, drain."""

from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest

from tests.integration.test_node import CERTIFICATES, Running
from tests.native_client import NativeError, SocketClient, upgraded
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, HEADER, Kind
from wherry.wire.native.codec.settles import Verb


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def place(node: Running) -> tuple[str, int]:
    parts = urlsplit(node.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def use(client: SocketClient) -> None:
    """Do a bit of everything over one connection."""
    assert (await client.call("PUT", "/v1/topics/jobs", b"{}"))[0] in (200, 201)
    stream = await client.subscribe("jobs", "workers", create={}, credit=1_000)
    numbers = [client.begin_publish("jobs", b"%d" % each) for each in range(100)]
    batch = pa.record_batch({"payload": pa.array([bytes(200)] * 400)})
    large = client.begin_arrow("jobs", batch)
    offsets = [(await client.answer(number)).offset for number in numbers]
    assert offsets == list(range(offsets[0], offsets[0] + 100))
    assert (await client.answer(large)).offset == offsets[-1] + 1
    rows = await client.next_rows(stream, 500)
    assert [row.offset for row in rows] == list(range(offsets[0], offsets[0] + 500))
    await client.settle(stream, Verb.ACK, *rows)
    status, stats = await client.call("GET", "/v1/topics/jobs/subscriptions/workers")
    assert (status, stats["stats"]["lag"]) == (200, 0)
    await client.leave()
    assert client.fault is None


@pytest.mark.rows("D26")
def test_everything_over_one_tcp_connection(data):
    async def main() -> None:
        await use(await upgraded(place(node)))

    with Running(data) as node:
        asyncio.run(main())
        status, text = node.ask("GET", "/v1/wire/sessions")
        assert (status, msgspec.json.decode(text)["sessions"]) == (200, [])
        _, metrics = node.ask("GET", "/metrics")
        assert 'wherry_native_frames_total{kind="PUBLISH"} 101.0' in metrics
        assert "wherry_native_sessions 0.0" in metrics


@pytest.mark.rows("Q13")
def test_everything_over_tls(data):
    files = [str(CERTIFICATES / name) for name in ("first.pem", "first.key")]
    trust = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")

    async def main() -> None:
        await use(await upgraded(place(node), tls=trust))

    with Running(data, "--tls-certificate", files[0], "--tls-key", files[1]) as node:
        asyncio.run(main())


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def test_the_unix_socket_serves_http_and_the_native_wire(data, tmp_path):
    path = str(tmp_path / "w.sock")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()  # left behind by a process that was killed

    with Running(data, "--unix-socket", path) as node:
        connection = UnixConnection(path)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()

        async def main() -> None:
            await use(await upgraded(path))

        asyncio.run(main())
        with pytest.raises(BaseException, match="unix_socket"), Running(tmp_path / "other", "--unix-socket", path):
            pass
        assert node.ask("GET", "/healthz")[0] == 200
        assert node.stop()[0] == 0
    assert not Path(path).exists()


@pytest.mark.parametrize("what", ["a file", "no folder"])
def test_a_path_that_cannot_be_a_socket_is_reported(data, tmp_path, what):
    path = tmp_path / ("file" if what == "a file" else "none/w.sock")
    if what == "a file":
        path.write_text("mine")
    with pytest.raises(BaseException, match=r"server\.unix_socket"), Running(data, "--unix-socket", str(path)):
        pass
    assert what != "a file" or path.read_text() == "mine"


def test_an_upgrade_that_is_not_asked_for_in_the_right_way_is_refused(data):
    with Running(data) as node:
        for headers, field in [
            ({}, "Upgrade"),
            ({"Upgrade": "websocket", "Connection": "Upgrade"}, "Upgrade"),
            ({"Upgrade": "wherry/9", "Connection": "Upgrade"}, "Upgrade"),
            ({"Upgrade": "wherry/1"}, "Connection"),
        ]:
            status, text = node.ask("GET", "/v1/wire", None, **headers)
            assert (status, msgspec.json.decode(text)["field"]) == (400, field)


def test_keys_are_asked_for_as_over_http(data):
    async def main() -> None:
        with pytest.raises(ConnectionError, match="401"):
            await upgraded(place(node))
        with pytest.raises(ConnectionError, match="401"):
            await upgraded(place(node), key="wk_" + "x" * 52)
        admin = await upgraded(place(node), key=first)
        await admin.call("PUT", "/v1/topics/jobs", b"{}")
        made = b'{"name":"ann","rights":[{"verb":"publish","topics":"jobs"}]}'
        status, key = await admin.call("POST", "/v1/keys", made)
        assert status == 201
        client = await upgraded(place(node), key=key["token"])
        await client.publish("jobs", b"x")
        with pytest.raises(NativeError) as fault:
            await client.subscribe("jobs", "s", create={})
        assert fault.value.code == "forbidden"
        assert (await client.call("DELETE", "/v1/topics/jobs"))[0] == 403
        status, view = await admin.call("GET", "/v1/wire/sessions")
        assert [each["user"] for each in view["sessions"]][1:] == ["ann"]
        assert (await client.call("GET", "/v1/wire/sessions"))[0] == 403
        assert (await admin.call("DELETE", f"/v1/keys/{key['id']}"))[0] == 204
        await client.until(lambda: client.is_closed)
        assert client.fault is not None
        assert client.fault.code == "unauthorized"
        await admin.leave()

    with Running(data, "--keys", "on") as node:
        first = next(Path(data).glob("*key*")).read_text().strip()
        asyncio.run(main())


@pytest.mark.parametrize("leaves", [True, False])
def test_a_stop_is_announced_and_nothing_confirmed_is_lost(data, leaves):
    async def main() -> int:
        client = await upgraded(place(node))
        await client.call("PUT", "/v1/topics/jobs", b"{}")
        stream = await client.subscribe("jobs", "workers", create={}, credit=10)
        await client.publish("jobs", b"first")
        (row,) = await client.next_rows(stream)
        confirmed = 1
        node.process.send_signal(signal.SIGTERM)
        while client.goodbye is None:
            await client.publish("jobs", b"%d" % confirmed)
            confirmed += 1
        await client.settle(stream, Verb.ACK, row)
        if leaves:
            await client.leave()
        else:
            await client.until(lambda: client.is_closed)
        assert client.fault is None
        return confirmed

    with Running(data) as node:
        confirmed = asyncio.run(main())
        assert node.end()[0] == 0
    with Running(data) as node:
        status, text = node.ask("GET", "/v1/topics/jobs/subscriptions/workers")
        assert (status, msgspec.json.decode(text)["stats"]["lag"]) == (200, confirmed - 1)


@pytest.mark.rows("Q2", "Q3")
def test_a_client_that_breaks_the_protocol_is_cut_off_and_a_flood_is_bounded(data):
    async def main() -> None:
        broken = await upgraded(place(node))
        broken.write(b"\xff" * 100)
        await broken.until(lambda: broken.is_closed)
        assert broken.fault is not None
        assert broken.fault.field == "kind"
        good = await upgraded(place(node))
        await good.call("PUT", "/v1/topics/jobs", b"{}")
        flood = await upgraded(place(node))
        flood.write(HEADER.pack(FRAME_BYTES_MAX, Kind.PUBLISH, 0, 0, 1) + bytes(1 << 20))
        assert (await good.publish("jobs", b"x")).offset == 0
        await flood.close()
        await good.leave()

    with Running(data) as node:
        asyncio.run(main())
        _, text = node.ask("GET", "/v1/wire/sessions")
        assert [each["why"] for each in msgspec.json.decode(text)["cut_offs"]] == ["protocol"]


@pytest.mark.rows("Q2", "Q3")
def test_a_client_that_reads_nothing_is_bounded_and_others_are_served(data):
    async def main() -> None:
        good = await upgraded(place(node))
        await good.call("PUT", "/v1/topics/jobs", b"{}")
        await good.call("PUT", "/v1/topics/jobs/subscriptions/workers", b"{}")
        deaf = await upgraded(place(node))
        deaf._reading.cancel()  # the client reads nothing from here on
        deaf.begin_subscribe("jobs", "workers", credit=1_000_000)
        for _ in range(40):
            batch = pa.record_batch({"payload": pa.array([bytes(60_000)] * 20)})
            await good.answer(good.begin_arrow("jobs", batch))
        _, view = await good.call("GET", "/v1/wire/sessions")
        unread = max(each["unread_bytes"] for each in view["sessions"])
        assert 0 < unread < 8 << 20
        assert (await good.publish("jobs", b"x")).offset == 800
        await deaf.close()
        await good.leave()

    with Running(data) as node:
        asyncio.run(main())
