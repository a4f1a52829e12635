"""The command line against a broker that `wherry serve` started."""

import asyncio
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from wherry import Message, connect
from wherry.cli.frame import EXAMPLES
from wherry.cli.main import app

PATIENCE_S = 60
WHERRY = [sys.executable, "-W", "error", "-m", "wherry"]


CERTIFICATES = Path(__file__).parents[1] / "unit" / "security" / "certificates"
TLS = ("--tls-certificate", str(CERTIFICATES / "first.pem"), "--tls-key", str(CERTIFICATES / "first.key"))
CA = ("--ca", str(CERTIFICATES / "authority.pem"))


@contextmanager
def broker(folder, *flags, **variables):
    """A broker of its own, on a port that was free; on the way out it stops by a signal, with everything written."""
    command = [*WHERRY, "serve", "--port", "0", "--data", str(folder / "data"), *flags]
    environment = {**os.environ, **variables}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            said += line
        try:
            yield said.split()[3]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A broker that may call this machine."""
    with broker(tmp_path_factory.mktemp("broker"), WHERRY_WEBHOOKS_ALLOW_PRIVATE="true") as url:
        yield url


@pytest.fixture
def wherry(url, request):
    """Run a command in this process; it must end as `code` says. `{t}` stands for a topic of the test's own."""
    topic = request.node.name.replace("[", "-").replace("]", "")[:60]

    def run(*arguments, code=0, stdin=""):
        words = [word.replace("{t}", topic) for word in arguments]
        done = CliRunner().invoke(app, words, env={"WHERRY_URL": url}, input=stdin, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    return run


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def bury(url, topic, *texts, subscription="workers", reason="rejected"):
    """Dead letters, as a consumer makes them that gives up; their texts are their ids."""

    async def main():
        async with connect(url) as client:
            await client.publish(topic, [Message(payload=text.encode(), id=text) for text in texts])
            batch = await client.pull(topic, subscription, len(texts), wait_ms=5_000)
            assert batch.column("id") == list(texts)
            await batch.reject(reason=reason, error="not a picture")

    asyncio.run(main())


def test_text_goes_in_and_comes_out(wherry):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    assert wherry("publish", "{t}", "hello", "wörld", "with\ttab").stdout.split() == ["0-0", "0-1", "0-2"]
    assert wherry("consume", "{t}", "workers").stdout == "hello\nwörld\nwith\ttab\n"
    assert wherry("consume", "{t}", "workers").stdout == "", "they were acked"


def test_lines_of_stdin_go_in(wherry):
    wherry("publish", "--create", "{t}", stdin="one\ntwo\r\n\nthree")
    done = wherry("consume", "--create", "{t}", "workers", "--json")
    assert [(row["payload"], row["attempt"]) for row in lines(done)] == [("one", 1), ("two", 1), ("three", 1)]


def test_bytes_come_out_as_they_went_in(wherry, tmp_path):
    body = bytes(range(256)) * 8
    (tmp_path / "body").write_bytes(body)
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "look")
    wherry("subscription", "create", "{t}", "workers")
    wherry("publish", "{t}", "--file", str(tmp_path / "body"), "--whole", "--id", "mine")
    assert wherry("consume", "{t}", "look", "--format", "raw").stdout_bytes == body
    [row] = lines(wherry("consume", "{t}", "workers", "--json"))
    assert (row["id"], "payload" in row, len(row["payload_base64"]) > len(body)) == ("mine", False, True)


def test_ten_thousand_lines_of_ndjson(wherry, tmp_path):
    file = tmp_path / "many.ndjson"
    with file.open("w") as out:
        for number in range(10_000):
            message = {"payload": {"n": number}, "key": f"key-{number % 7}", "headers": {"parity": str(number % 2)}}
            out.write(json.dumps(message) + "\n")
    [told] = lines(wherry("publish", "--create", "{t}", "--file", str(file), "--ndjson", "--header", "x=y", "--json"))
    assert told["count"] == 10_000
    assert [row["payload"] for row in lines(wherry("peek", "{t}", "--start", "9999", "--json"))] == ['{"n":9999}']
    rows = lines(wherry("search", "{t}", "--key", "key-3", "--header", "parity=1", "--limit", "10000", "--json"))
    assert [json.loads(row["payload"])["n"] for row in rows] == [n for n in range(10_000) if n % 7 == 3 and n % 2]
    out = wherry("consume", "--create", "{t}", "workers").stdout
    assert [json.loads(line)["n"] for line in out.splitlines()] == list(range(10_000))


def test_a_bad_line_is_named_and_what_came_before_is_there(wherry):
    wherry("topic", "create", "{t}")
    done = wherry("publish", "{t}", "--ndjson", stdin='{"payload": 1}\n{"payload": 2}\n{"prio": 3}\n', code=1)
    assert "- line 3: got" in done.stderr
    assert "(2 came before it and were sent)" in done.stderr
    assert len(lines(wherry("peek", "{t}", "--json"))) == 2


def test_the_most_urgent_leaves_first(wherry):
    wherry("topic", "create", "{t}", "--order", "priority")
    wherry("publish", "{t}", "dusty", "--priority", "900")
    wherry("publish", "{t}", "FIRE", "--priority", "0")
    assert wherry("consume", "--create", "{t}", "pager").stdout == "FIRE\ndusty\n"


def test_what_is_due_later_is_listed_changed_and_cancelled_until_then(wherry):
    wherry("topic", "create", "{t}", "--order", "timeline")
    wherry("subscription", "create", "{t}", "sender")
    wherry("publish", "{t}", "hi", "--id", "hi", "--due", "in 10m")
    wherry("publish", "{t}", "bye", "--id", "bye", "--due", "2099-01-01T00:00")
    assert wherry("consume", "{t}", "sender").stdout == "", "nothing is early"
    rows = lines(wherry("peek", "{t}", "--scheduled", "sender", "--json"))
    assert [row["id"] for row in rows] == ["hi", "bye"]
    wherry("message", "amend", "{t}", "hi", "--due", "now", "--payload", "hello", "--version", "1")
    wherry("message", "cancel", "{t}", "bye")
    assert wherry("consume", "{t}", "sender", "--wait", "5s", "--count", "1").stdout == "hello\n"
    assert "no message named 'bye'" in wherry("message", "show", "{t}", "bye", code=1).stderr


def test_looking_takes_nothing(wherry):
    wherry("publish", "--create", "{t}", "one", "two")
    wherry("subscription", "create", "{t}", "workers")
    for _ in range(2):
        assert wherry("consume", "{t}", "workers", "--no-ack").stdout == "one\ntwo\n"
        assert [row["payload"] for row in lines(wherry("peek", "{t}", "--json"))] == ["one", "two"]
    [row] = lines(wherry("consume", "{t}", "workers", "--count", "1", "--json"))
    assert row["attempt"] == 1
    assert lines(wherry("message", "fate", "{t}", "0-1", "--json"))[0]["subscriptions"] == {"workers": "waiting"}
    assert wherry("message", "fate", "{t}", "0-1").stdout.splitlines()[0] == "waiting"
    assert wherry("message", "fate", "{t}", "0-0").stdout.splitlines()[0] == "settled"


@pytest.mark.rows("A11", "A12")
def test_dead_letters_are_seen_redriven_and_audited(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    bury(url, request.node.name, "broken.png", "torn.png", reason="no picture")
    rows = lines(wherry("dead", "list", "{t}", "--json"))
    assert [(row["payload"], row["reason"], row["error"]) for row in rows] == [
        ("broken.png", "no picture", "not a picture"),
        ("torn.png", "no picture", "not a picture"),
    ]
    [one] = lines(wherry("dead", "show", "{t}", "torn.png", "--json"))
    assert (one["payload"], one["attempts"]) == ("torn.png", 1)
    assert "broken.png" in wherry("dead", "redrive", "{t}", "--dry-run").stdout
    assert "say --yes" in wherry("dead", "redrive", "{t}", code=2).stderr, "nobody is there to say yes"
    wherry("dead", "list", "{t}", "--reason", "elsewhere")
    told = wherry("dead", "redrive", "{t}", "--reason", "picture", "--rate", "100", "--by", "ann", "--yes", "--json")
    assert lines(told) == [{"count": 2}]
    again = wherry("dead", "redrive", "{t}", "--yes")
    assert "no such dead letters" in again.stderr
    assert wherry("consume", "{t}", "workers").stdout == "broken.png\ntorn.png\n"
    assert {(deed["what"], deed["by"]) for deed in lines(wherry("dead", "audit", "{t}", "--json"))} == {
        ("redriven", "ann")
    }


def test_dead_letters_are_thrown_away(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    bury(url, request.node.name, "a", "b")
    assert lines(wherry("dead", "discard", "{t}", "--subscription", "workers", "--yes", "--json")) == [{"count": 2}]
    assert wherry("dead", "list", "{t}", "--json").stdout == ""


def test_top_tells_the_figures_of_every_subscription(wherry, request):
    wherry("publish", "--create", "{t}", "one", "two", "three")
    wherry("subscription", "create", "{t}", "workers")
    wherry("consume", "{t}", "workers", "--count", "1")
    rows = lines(wherry("top", "--once", "--every", "0.1", "--json"))
    [row] = [row for row in rows if row["topic"] == request.node.name]
    assert (row["subscription"], row["ready"], row["leased"], row["dead"], row["lag"]) == ("workers", 2, 0, 0, 2)
    assert (row["in"], row["out"]) == (0.0, 0.0)
    assert "workers" in wherry("top", "--once", "--every", "0.1").stdout


def test_topics_and_subscriptions_are_changed_and_deleted(wherry):
    wherry("topic", "create", "{t}", "--messages-max", "10", "--keep", "age", "--keep-for", "1h")
    wherry("topic", "create", "{t}", "--messages-max", "10")
    assert "exists and differs" in wherry("topic", "create", "{t}", "--messages-max", "11", code=1).stderr
    wherry("topic", "change", "{t}", "--messages-max", "2", "--overflow", "dead-letter")
    [view] = lines(wherry("topic", "show", "{t}", "--json"))
    assert (view["config"]["messages_max"], view["config"]["overflow"], view["config"]["keep_ms"]) == (
        2,
        "dead-letter",
        3_600_000,
    )
    wherry("subscription", "create", "{t}", "w", "--attempts", "3", "--lease", "5m", "--start", "latest")
    wherry("subscription", "change", "{t}", "w", "--retry-first", "2s")
    [view] = lines(wherry("subscription", "show", "{t}", "w", "--json"))
    retry = view["config"]["retry"]
    assert (view["config"]["lease_ms"], retry["attempts"], retry["first_ms"]) == (300_000, 3, 2_000)
    assert [row["name"] for row in lines(wherry("subscription", "list", "{t}", "--json"))] == ["w"]
    wherry("subscription", "delete", "{t}", "w", "--yes")
    assert "say --yes" in wherry("topic", "delete", "{t}", code=2).stderr
    wherry("topic", "delete", "{t}", "--yes")
    assert "no topic named" in wherry("topic", "show", "{t}", code=1).stderr


def test_keys_are_made_listed_and_deleted(wherry):
    [made] = lines(wherry("key", "create", "ann", "--right", "publish:jobs*", "--expires", "in 1d", "--json"))
    assert made["token"].startswith(f"wk_{made['id']}_")
    listed = [row for row in lines(wherry("key", "list", "--json")) if row["id"] == made["id"]]
    assert [row["rights"] for row in listed] == [[{"verb": "publish", "topics": "jobs*"}]]
    assert made["token"] not in wherry("key", "show", made["id"]).stdout
    wherry("key", "change", made["id"], "--name", "bob", "--right", "consume", "--never-expires")
    [view] = lines(wherry("key", "show", made["id"], "--json"))
    assert (view["name"], view["rights"], view["expires_ms"]) == ("bob", [{"verb": "consume", "topics": "*"}], None)
    wherry("key", "delete", made["id"], "--yes")
    assert "no key named" in wherry("key", "show", made["id"], code=1).stderr


def test_load_is_paced_and_ends_by_itself(wherry):
    began = time.monotonic()
    [told] = lines(wherry("load", "{t}", "--count", "3", "--rate", "10", "--sync", "1", "--json"))
    assert told["sent"] == told["sync"]["count"] == 3
    assert told["failed"] == {}
    assert 0 < told["sync"]["p50_ms"] <= told["sync"]["p100_ms"]
    assert 0.2 <= told["seconds"] <= time.monotonic() - began, "the third leaves two tenths after the first"
    assert wherry("subscription", "list", "{t}", "--json").stdout == "", (
        "nobody is left for whom messages would be kept"
    )


def test_what_is_not_settled_in_time_has_failed(wherry):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "idle")
    words = ("load", "{t}", "--count", "2", "--rate", "50", "--timeout", "300ms", "--json")
    [told] = lines(wherry(*words, code=1))
    assert told["failed"] == {"still delivered after 300 ms": 1, "no callback in time": 1}
    assert not {"sync", "async"} & set(told)
    [told] = lines(wherry(*words, "--sync", "1", "--wait", "delivered"))
    assert (told["sync"]["count"], told["failed"]) == (2, {})


def test_load_is_sync_where_the_broker_does_not_call_back(tmp_path):
    with broker(tmp_path) as url:
        words = ["--url", url, "load", "jobs", "--count", "4", "--rate", "50", "--json"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        [told] = lines(done)
        assert (done.exit_code, told["sent"], told["sync"]["count"], told["failed"]) == (0, 4, 4, {})
        assert done.stderr.count("WHERRY_WEBHOOKS_ALLOW_PRIVATE=true") == 1
        chosen = CliRunner().invoke(app, [*words, "--sync", "0.5"], catch_exceptions=False)
    assert (chosen.exit_code, chosen.stdout) == (1, ""), "somebody asked for the mix"
    assert "WHERRY_WEBHOOKS_ALLOW_PRIVATE=true" in chosen.stderr


class CallsBack(BaseHTTPRequestHandler):
    """As much of a broker as a load generator sees: it says yes, and calls back whoever asked for it."""

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
            self.call_back(query, name)  # it may come before the answer
        told = json.dumps({"fate": "settled", "ids": [name]}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)
        if name != "0-0":
            self.call_back(query, name)

    def call_back(self, query, name):
        for fate in ("delivered", "settled") if "callback" in query else ():
            outcomes = {"outcomes": [{"topic": "jobs", "id": name, "fate": fate}]}
            urlopen(query["callback"], json.dumps(outcomes).encode()).close()

    do_GET = do_PUT = do_POST = answer  # noqa: N815  the names that the library calls

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.rows("K13")
def test_load_mixes_sync_and_async_evenly_at_its_pace():
    with ThreadingHTTPServer(("127.0.0.1", 0), CallsBack) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ["--url", f"http://127.0.0.1:{server.server_port}", "load", "jobs", "--no-consumer", "--count", "4"]
        done = CliRunner().invoke(app, [*words, "--rate", "5", "--sync", "0.5", "--json"], catch_exceptions=False)
        server.shutdown()
    assert done.exit_code == 0, done.output
    [told] = lines(done)
    assert (told["sent"], told["sync"]["count"], told["async"]["count"], told["failed"]) == (4, 2, 2, {})
    assert ["wait" in query for _, query in CallsBack.seen] == [False, True, False, True]
    assert [query["wait"] for _, query in CallsBack.seen if "wait" in query] == ["settled", "settled"]
    gaps = [after - before for (before, _), (after, _) in pairwise(CallsBack.seen)]
    assert all(0.1 < gap < 1.0 for gap in gaps), gaps


@pytest.mark.rows("K13")
def test_load_is_called_back_by_a_real_broker(wherry):
    [told] = lines(wherry("load", "{t}", "--count", "10", "--rate", "20", "--json"))
    assert (told["sent"], told["sync"]["count"], told["async"]["count"], told["failed"]) == (10, 5, 5, {})
    assert told["accepted"]["p50_ms"] <= told["async"]["p100_ms"]


def test_bench_leaves_nothing_behind(wherry):
    before = wherry("topic", "list", "--json").stdout
    rows = lines(wherry("bench", "--messages", "2000", "--json"))
    assert [row["messages"] for row in rows] == [2_000] * 4
    assert all(row["rate"] > 0 for row in rows)
    assert len(wherry("topic", "list", "--json").stdout.splitlines()) == len(before.splitlines())


def test_doctor_looks_at_everything(wherry, tmp_path):
    findings = {row["check"]: row for row in lines(wherry("doctor", "--data", str(tmp_path), "--json"))}
    assert set(findings) == {
        *("python", "wherry", "packages", "optional", "disk sync", "disk space", "data access", "descriptors"),
        *("broker", "clock", "ports", "java"),
    }
    assert {findings[name]["verdict"] for name in ("python", "packages", "broker", "clock")} == {"ok"}
    assert list(tmp_path.iterdir()) == []


def test_doctor_advises_when_there_is_no_broker(tmp_path):
    done = CliRunner().invoke(app, ["--url", "http://127.0.0.1:1", "doctor", "--data", str(tmp_path)])
    assert "wherry serve" in done.stdout


def test_tab_knows_the_names(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    asked = {"_WHERRY_COMPLETE": "complete_bash", "WHERRY_URL": url}
    for words, name in (
        ("wherry peek test_tab", request.node.name),
        (f"wherry consume {request.node.name} w", "workers"),
    ):
        env = asked | {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert CliRunner().invoke(app, [], env=env, prog_name="wherry").stdout.split() == [name]
    env = asked | {"WHERRY_URL": "http://127.0.0.1:1", "COMP_WORDS": "wherry peek t", "COMP_CWORD": "2"}
    assert CliRunner().invoke(app, [], env=env, prog_name="wherry").stdout.split() == [], "nobody answers"


def test_without_a_broker_it_says_so_at_once():
    began = time.monotonic()
    for words in (["topic", "list"], ["publish", "jobs", "x"], ["consume", "jobs", "w"], ["load", "jobs"]):
        done = CliRunner().invoke(app, ["--url", "http://127.0.0.1:1", *words])
        assert done.exit_code == 1
        assert "is the broker running? wherry serve" in done.stderr
    assert time.monotonic() - began < 10


def test_tls_by_options(tmp_path):
    def run(*words):
        return CliRunner().invoke(app, list(words), catch_exceptions=False)

    with broker(tmp_path, *TLS) as url:
        assert run("--url", url, *CA, "publish", "--create", "jobs", "hello").exit_code == 0
        findings = map(json.loads, run("--url", url, *CA, "doctor", "--json").stdout.splitlines())
        assert {row["check"]: row["verdict"] for row in findings}["broker"] == "ok"
        untrusted = run("--url", url, "topic", "list")
        assert (untrusted.exit_code, "--ca" in untrusted.stderr) == (1, True)
        assert "running" not in untrusted.stderr
        plain = run("--url", url.replace("https:", "http:"), "topic", "list")
        assert (plain.exit_code, f"--url {url}" in plain.stderr) == (1, True)


def test_a_certificate_of_ones_own(tmp_path):
    ours = {"WHERRY_CA": CA[1]}
    shown = {
        "WHERRY_CERT": str(CERTIFICATES / "second.pem"),
        "WHERRY_CERT_KEY": str(CERTIFICATES / "second.key"),
    }
    with broker(tmp_path, *TLS, "--tls-client-ca", CA[1], **ours) as url:
        without = CliRunner().invoke(app, ["--url", url, "topic", "list"], env=ours)
        assert (without.exit_code, "--cert" in without.stderr) == (1, True)
        done = CliRunner().invoke(app, ["--url", url, "topic", "list"], env=ours | shown)
        assert done.exit_code == 0, done.output


def test_publish_waits_for_what_becomes_of_it(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    late = wherry("publish", "{t}", "one", "two", "--wait", "settled", "--timeout", "100ms", code=1)
    assert late.stdout == "0-0 waiting\n0-1 waiting\n"
    assert "2 of 2 not settled within 100 ms: 2 waiting" in late.stderr
    command = [*WHERRY, "--url", url, "consume", request.node.name, "workers", "--follow", "--count", "1205"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert wherry("publish", "{t}", "three", "--wait", "settled", "--id", "c").stdout == "c settled\n"
            assert wherry("publish", "{t}", "four", "--wait", "delivered").stdout.startswith("0-3 ")
            [told] = lines(wherry("publish", "{t}", "--wait", "settled", "--json", stdin="x\n" * 1_201))
        finally:
            process.kill()
    assert (told["count"], told["fates"]) == (1_201, {"settled": 1_201})


def test_routes_copy_to_topics(wherry, request):
    name = request.node.name
    wherry("topic", "create", "{t}")
    wherry("topic", "create", "{t}-2")
    wherry("route", "put", "{t}", "--kind", "pattern", "--to", "{t}=order.#", "--to", "{t}-2=*.paid")
    [view] = [row for row in lines(wherry("route", "list", "--json")) if row["name"] == name]
    assert lines(wherry("route", "show", "{t}", "--json")) == [view]
    assert view["bindings"] == [{"topic": name, "match": "order.#"}, {"topic": f"{name}-2", "match": "*.paid"}]
    assert f"{name}-2=*.paid" in wherry("route", "show", "{t}").stdout
    words = ("route", "publish", "{t}", "one", "two", "--header", "a=b", "--json", "--routing-key")
    assert {row["topic"]: row["ids"] for row in lines(wherry(*words, "order.paid"))} == {
        name: ["0-0", "0-1"],
        f"{name}-2": ["0-0", "0-1"],
    }
    assert [row["topic"] for row in lines(wherry(*words, "order.new"))] == [name]
    assert wherry(*words, "elsewhere").stdout == ""
    assert [row["headers"] for row in lines(wherry("peek", "{t}-2", "--json"))] == [{"a": "b"}] * 2
    wherry("route", "put", "{t}", "--kind", "headers", "--to", "{t}=region:eu,size:big", "--any-header")
    [view] = lines(wherry("route", "show", "{t}", "--json"))
    assert view["bindings"] == [{"topic": name, "headers": {"region": "eu", "size": "big"}, "any_header": True}]
    assert "say --yes" in wherry("route", "delete", "{t}", code=2).stderr
    wherry("route", "delete", "{t}", "--yes")
    assert "no route named" in wherry("route", "show", "{t}", code=1).stderr


def test_webhooks_are_set_changed_and_taken_away(wherry):
    def hook():
        return lines(wherry("subscription", "show", "{t}", "w", "--json"))[0]["config"]["webhook"]

    wherry("topic", "create", "{t}")
    place = "http://127.0.0.1:1/hook"
    made = wherry("subscription", "create", "{t}", "w", "--webhook", place, "--webhook-batch", "7")
    assert len(made.stdout.strip()) == 43, "a secret, shown once"
    assert (hook()["url"], hook()["batch"], hook()["secret"]) == (place, 7, "…")
    words = ("subscription", "change", "{t}", "w", "--webhook-secret", "0123456789abcdef")
    done = wherry(*words, "--webhook-timeout", "2s", "--webhook-in-flight", "3", "--webhook-remove-after", "4")
    assert done.stdout == ""
    assert hook() == {
        "url": place,
        "secret": "…",
        "batch": 7,
        "timeout_ms": 2_000,
        "remove_after": 4,
        "in_flight": 3,
    }
    wherry("subscription", "change", "{t}", "w", "--no-webhook")
    assert hook() is None


def test_what_is_not_there_is_told_with_what_to_do(wherry):
    assert "wherry topic create" in wherry("publish", "{t}", "x", code=1).stderr
    assert "wherry topic create" in wherry("consume", "{t}", "w", code=1).stderr
    wherry("topic", "create", "{t}")
    assert "wherry subscription create" in wherry("consume", "{t}", "w", code=1).stderr


def test_a_slow_pipe_is_published_as_it_comes(wherry, url, request):
    wherry("topic", "create", "{t}")
    command = [*WHERRY, "--url", url, "publish", request.node.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        until = time.monotonic() + PATIENCE_S
        while not wherry("peek", "{t}", "--json").stdout and time.monotonic() < until:
            time.sleep(0.05)
        assert process.poll() is None, "the pipe is open still"
        assert [row["payload"] for row in lines(wherry("peek", "{t}", "--json"))] == ["first"]
        _, errors = process.communicate("second\n", timeout=PATIENCE_S)
    assert (process.returncode, "2 published" in errors) == (0, True)


def test_follow_goes_on_until_control_c(wherry, url, request):
    wherry("publish", "--create", "{t}", "one")
    command = [*WHERRY, "--url", url, "consume", "--create", request.node.name, "workers", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        wherry("publish", "{t}", "two")
        assert process.stdout.readline() == "two\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, errors) == (130, "", "2 messages\n")
    assert wherry("consume", "{t}", "workers").stdout == "", "both were acked"


def test_a_terminal_gets_a_bar_and_no_escapes_of_others(url, request, tmp_path):
    """Somebody watches: stderr is a terminal."""
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(20_000)))
    ours, theirs = pty.openpty()
    command = [*WHERRY, "--url", url, "publish", "--create", request.node.name, "--file", str(file)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert process.returncode == 0
    assert b"messages," in seen
    assert b"20,000 published" in seen


ORDER = [
    *(
        "topic create",
        "subscription create",
        "publish",
        "topic list",
        "topic show",
        "topic change",
        "subscription list",
    ),
    *("route put", "route list", "route show", "route publish", "route delete"),
    *("subscription show", "subscription change", "peek", "search", "message show", "message fate", "message amend"),
    *(
        "message cancel",
        "consume",
        "dead list",
        "dead show",
        "dead redrive",
        "dead discard",
        "dead audit",
        "key create",
    ),
    *(
        "key list",
        "key show",
        "key change",
        "key delete",
        "top",
        "load",
        "bench",
        "doctor",
        "config show",
        "completion",
    ),
    *("subscription delete", "topic delete"),
]
"""How somebody would come upon them; `serve` and `tour` have tests of their own."""


def test_examples_run_as_printed(tmp_path, monkeypatch, url, wherry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_URL", url)
    Path("README.md").write_text("# Read me\n")
    Path("wherry").write_text(f'#!/bin/sh\nexec {" ".join(WHERRY)} "$@"\n')
    Path("wherry").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sorted(ORDER) == sorted(set(EXAMPLES) - {"serve", "tour"})
    for path in ORDER:
        if path == "publish":
            wherry("topic", "create", "calls")
            wherry("subscription", "create", "calls", "workers")
            command = [*WHERRY, "consume", "calls", "workers", "--follow", "--count", "1"]
            answering = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if path == "dead list":
            wherry("consume", "jobs", "strict")
            bury(url, "jobs", "cat.png", "dog.png", subscription="strict")
        if path == "key show":
            monkeypatch.setenv("ID", lines(wherry("key", "list", "--json"))[0]["id"])
        for example in EXAMPLES[path]:
            if any(sign in example for sign in "|$"):
                subprocess.run(["bash", "-ec", example], stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=True)
            else:
                _, *words = shlex.split(example)
                wherry(*words)
        if path == "publish":
            assert answering.wait(PATIENCE_S) == 0
