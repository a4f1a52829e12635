"""`wherry load` and `wherry bench`: paced, measured, and gone without a trace."""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from tests.integration.shell import broker, lines
from wherry.cli.load import Load
from wherry.cli.main import app
from wherry.cli.options import GlobalOptions
from wherry.sim.world import loop as simulated


def test_load_is_paced_and_ends_by_itself(wherry):
    began = time.monotonic()
    [report] = lines(wherry("load", "{t}", "--count", "3", "--rate", "10", "--sync", "1", "--json"))
    assert report["sent"] == report["sync"]["count"] == 3
    assert report["failed"] == {}
    assert 0 < report["sync"]["p50_ms"] <= report["sync"]["p100_ms"]
    assert 0.2 <= report["seconds"] <= time.monotonic() - began, "the third leaves two tenths after the first"
    assert wherry("subscription", "list", "{t}", "--json").stdout == "", (
        "no subscription is left that would keep messages"
    )


def test_what_is_not_settled_in_time_has_failed(wherry):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "idle")
    words = ("load", "{t}", "--count", "2", "--rate", "50", "--timeout", "300ms", "--json")
    [report] = lines(wherry(*words, code=1))
    assert report["failed"] == {"still delivered after 300 ms": 1, "no callback in time": 1}
    assert not {"sync", "async"} & set(report)
    [report] = lines(wherry(*words, "--sync", "1", "--wait", "delivered"))
    assert (report["sync"]["count"], report["failed"]) == (2, {})


def test_load_is_sync_where_the_broker_does_not_call_back(tmp_path):
    with broker(tmp_path) as url:
        words = ["--url", url, "load", "jobs", "--count", "4", "--rate", "50", "--json"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        [report] = lines(done)
        assert (done.exit_code, report["sent"], report["sync"]["count"], report["failed"]) == (0, 4, 4, {})
        assert done.stderr.count("WHERRY_WEBHOOKS_ALLOW_PRIVATE=true") == 1
        chosen = CliRunner().invoke(app, [*words, "--sync", "0.5"], catch_exceptions=False)
    assert (chosen.exit_code, chosen.stdout) == (1, ""), "a mix was asked for"
    assert "WHERRY_WEBHOOKS_ALLOW_PRIVATE=true" in chosen.stderr


class CallsBack(BaseHTTPRequestHandler):
    """As much of a broker as a load generator sees: it takes messages, and posts their callbacks."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[float, dict[str, str]]]] = []

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = dict(parse_qsl(urlsplit(self.path).query))
        name = f"0-{len(self.seen)}"
        if self.command == "POST":
            assert json.loads(body)["payload"].startswith(f"{len(self.seen) + 1} ")
            self.seen.append((time.monotonic(), query))
        if name == "0-0":
            self.call_back(query, name)  # a callback may come before the answer
        report = json.dumps({"fate": "settled", "ids": [name]}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(report)))
        self.end_headers()
        self.wfile.write(report)
        if name != "0-0":
            self.call_back(query, name)

    def call_back(self, query, name):
        for fate in ("delivered", "settled") if "callback" in query else ():
            outcomes = {"outcomes": [{"topic": "jobs", "id": name, "fate": fate}]}
            urlopen(query["callback"], json.dumps(outcomes).encode()).close()

    do_GET = do_PUT = do_POST = answer  # noqa: N815  the names that the library calls

    def log_message(self, *_):
        """Log nothing."""


@pytest.mark.rows("K13")
def test_load_mixes_sync_and_async_evenly_at_its_pace():
    with ThreadingHTTPServer(("127.0.0.1", 0), CallsBack) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ["--url", f"http://127.0.0.1:{server.server_port}", "load", "jobs", "--no-consumer", "--count", "4"]
        done = CliRunner().invoke(app, [*words, "--rate", "5", "--sync", "0.5", "--json"], catch_exceptions=False)
        server.shutdown()
    assert done.exit_code == 0, done.output
    [report] = lines(done)
    assert (report["sent"], report["sync"]["count"], report["async"]["count"], report["failed"]) == (4, 2, 2, {})
    assert ["wait" in query for _, query in CallsBack.seen] == [False, True, False, True]
    assert [query["wait"] for _, query in CallsBack.seen if "wait" in query] == ["settled", "settled"]
    assert [query.get("timeout_ms") for _, query in CallsBack.seen] == [None, "10000"] * 2, (
        "no consumer holds the others"
    )


@pytest.mark.rows("K13")
@pytest.mark.parametrize(("words", "pace_s"), [([], 1.0), (["--rate", "5"], 0.2), (["--rate", "0.01"], 100.0)])
def test_load_sends_one_message_a_second_by_default(monkeypatch, words, pace_s):
    """Use a clock that jumps: how even the pace is does not depend on this machine."""
    sent: list[tuple[float, bool]] = []

    async def only_send(self: Load, link: object, *, consume: bool) -> None:
        assert consume
        await self._send_all(link, "http://127.0.0.1:1/")  # type: ignore[arg-type]

    async def one(self: Load, link: object, number: int, callback: str, *, is_sync: bool) -> None:
        sent.append((asyncio.get_running_loop().time(), is_sync))
        await asyncio.sleep(30)  # a slow answer holds up no other message
        self._note("sync" if is_sync else "async", 0)

    monkeypatch.setattr(GlobalOptions, "run", lambda self, work: simulated.run(work(None)))
    monkeypatch.setattr(Load, "run", only_send)
    monkeypatch.setattr(Load, "_one", one)
    done = CliRunner().invoke(app, ["load", "jobs", "--count", "6", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    began = sent[0][0]
    assert [round(at - began, 6) for at, _ in sent] == [round(pace_s * number, 6) for number in range(6)]
    assert [is_sync for _, is_sync in sent] == [False, True] * 3


@pytest.mark.rows("K13")
def test_load_is_called_back_by_a_real_broker(wherry):
    [report] = lines(wherry("load", "{t}", "--count", "10", "--rate", "20", "--json"))
    assert (report["sent"], report["sync"]["count"], report["async"]["count"], report["failed"]) == (10, 5, 5, {})
    assert report["accepted"]["p50_ms"] <= report["async"]["p100_ms"]


def test_bench_leaves_nothing_behind(wherry):
    before = wherry("topic", "list", "--json").stdout
    rows = lines(wherry("bench", "--messages", "2000", "--json"))
    assert [row["messages"] for row in rows] == [2_000] * 4
    assert all(row["rate"] > 0 for row in rows)
    assert len(wherry("topic", "list", "--json").stdout.splitlines()) == len(before.splitlines())
