"""The command line against a broker that `wherry serve` started: messages in, messages out."""

import json
import os
import pty
import signal
import subprocess
import time

from tests.integration.shell import PATIENCE_S, WHERRY, lines


def test_text_is_published_and_consumed(wherry):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    assert wherry("publish", "{t}", "hello", "wörld", "with\ttab").stdout.split() == ["0-0", "0-1", "0-2"]
    assert wherry("consume", "{t}", "workers").stdout == "hello\nwörld\nwith\ttab\n"
    assert wherry("consume", "{t}", "workers").stdout == "", "they were acked"


def test_lines_of_stdin_are_published(wherry):
    wherry("publish", "--create", "{t}", stdin="one\ntwo\r\n\nthree")
    done = wherry("consume", "--create", "{t}", "workers", "--json")
    assert [(row["payload"], row["attempt"]) for row in lines(done)] == [("one", 1), ("two", 1), ("three", 1)]


def test_bytes_are_consumed_as_they_were_published(wherry, tmp_path):
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
    [report] = lines(wherry("publish", "--create", "{t}", "--file", str(file), "--ndjson", "--header", "x=y", "--json"))
    assert report["count"] == 10_000
    assert [row["payload"] for row in lines(wherry("browse", "{t}", "--start", "9999", "--json"))] == ['{"n":9999}']
    rows = lines(wherry("search", "{t}", "--key", "key-3", "--header", "parity=1", "--limit", "10000", "--json"))
    assert [json.loads(row["payload"])["n"] for row in rows] == [n for n in range(10_000) if n % 7 == 3 and n % 2]
    out = wherry("consume", "--create", "{t}", "workers").stdout
    assert [json.loads(line)["n"] for line in out.splitlines()] == list(range(10_000))


def test_a_bad_line_is_named_and_what_came_before_is_there(wherry):
    wherry("topic", "create", "{t}")
    done = wherry("publish", "{t}", "--ndjson", stdin='{"payload": 1}\n{"payload": 2}\n{"prio": 3}\n', code=1)
    assert "- line 3: got" in done.stderr
    assert "(2 were stored)" in done.stderr
    assert len(lines(wherry("browse", "{t}", "--json"))) == 2


def test_what_is_refused_is_not_counted_as_stored(wherry):
    wherry("topic", "create", "{t}")
    assert "stored" not in wherry("publish", "{t}", "x", "--priority", "70000", code=1).stderr
    messages = '{"payload": 1}\n{"payload": 2, "priority": 70000}\n{"payload": 3, "id": "a"}\n'
    assert "(2 were stored)" in wherry("publish", "{t}", "--ndjson", stdin=messages, code=1).stderr
    again = '{"payload": 4}\n{"payload": 5, "id": "a"}\n'
    assert "(1 was stored)" in wherry("publish", "{t}", "--ndjson", stdin=again, code=1).stderr
    assert len(lines(wherry("browse", "{t}", "--json"))) == 3


def test_without_acks_what_is_printed_is_done(wherry):
    wherry("publish", "--create", "{t}", "one", "two")
    wherry("subscription", "create", "{t}", "log", "--no-acks")
    assert "--no-ack: got" in wherry("consume", "{t}", "log", "--no-ack", code=1).stderr
    assert wherry("consume", "{t}", "log", "--count", "1").stdout == "one\n"
    assert wherry("consume", "{t}", "log").stdout == "two\n"


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
    rows = lines(wherry("browse", "{t}", "--scheduled", "sender", "--json"))
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
        assert [row["payload"] for row in lines(wherry("browse", "{t}", "--json"))] == ["one", "two"]
    [row] = lines(wherry("consume", "{t}", "workers", "--count", "1", "--json"))
    assert row["attempt"] == 1
    assert lines(wherry("message", "fate", "{t}", "0-1", "--json"))[0]["subscriptions"] == {"workers": "waiting"}
    assert wherry("message", "fate", "{t}", "0-1").stdout.splitlines()[0] == "waiting"
    assert wherry("message", "fate", "{t}", "0-0").stdout.splitlines()[0] == "settled"


def test_publish_waits_for_the_outcome(wherry, url, request):
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
            [report] = lines(wherry("publish", "{t}", "--wait", "settled", "--json", stdin="x\n" * 1_201))
        finally:
            process.kill()
    assert (report["count"], report["fates"]) == (1_201, {"settled": 1_201})


def test_a_slow_pipe_is_published_as_it_comes(wherry, url, request):
    wherry("topic", "create", "{t}")
    command = [*WHERRY, "--url", url, "publish", request.node.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        until = time.monotonic() + PATIENCE_S
        while not wherry("browse", "{t}", "--json").stdout and time.monotonic() < until:
            time.sleep(0.05)
        assert process.poll() is None, "the pipe is open still"
        assert [row["payload"] for row in lines(wherry("browse", "{t}", "--json"))] == ["first"]
        _, errors = process.communicate("second\n", timeout=PATIENCE_S)
    assert (process.returncode, "2 published" in errors) == (0, True)


def test_follow_continues_until_control_c(wherry, url, request):
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
    """Publish with a terminal as stderr."""
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


def test_a_name_that_is_not_there_is_reported_with_what_to_do(wherry):
    assert "wherry topic create" in wherry("publish", "{t}", "x", code=1).stderr
    assert "wherry topic create" in wherry("consume", "{t}", "w", code=1).stderr
    wherry("topic", "create", "{t}")
    assert "wherry subscription create" in wherry("consume", "{t}", "w", code=1).stderr
