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


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A broker of its own, on a port that was free; on the way out it stops by a signal, with everything written."""
    folder = tmp_path_factory.mktemp("broker")
    command = [*WHERRY, "serve", "--port", "0", "--data", str(folder / "data")]
    environment = {**os.environ, "WHERRY_WEBHOOKS_ALLOW_PRIVATE": "true"}
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
        yield said.split()[3]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


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
        *("python", "wherry", "packages", "optional", "disk sync", "disk space", "broker", "clock", "ports", "java")
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
    *("key list", "key show", "key delete", "top", "load", "bench", "doctor", "config show", "completion"),
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
