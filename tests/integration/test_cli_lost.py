"""`wherry lost`: what a peer lost, at the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import msgspec
import pytest
from typer.testing import CliRunner

from tests.unit.service.lost.samples import lost_call
from wherry.cli.main import app
from wherry.service.lost.bounds import LostBounds
from wherry.service.lost.log import LostLog


@pytest.fixture
def lost(tmp_path):
    """Run `wherry lost … --log` of a folder with three calls."""

    async def prepare():
        async with LostLog(tmp_path / "lost", LostBounds(calls=3, body_bytes=50)) as log:
            for call in (
                lost_call("c0"),
                lost_call("c1", error="TimedOut", text="no answer after 2 s", session="customer-7"),
                lost_call("c2", service="mail", body=msgspec.msgpack.encode({"to": "ann"}), content="msgpack"),
                lost_call("c3", side="provider", body=b"\xff" * 51),
            ):
                assert await log.keep(call)

    asyncio.run(prepare())

    def run(*words, code=0):
        done = CliRunner().invoke(app, ["lost", *words, "--log", str(tmp_path / "lost")], input="")
        assert done.exit_code == code, done.output
        return done

    return run


def rows(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.rows("P15")
def test_lost_calls_are_listed(lost):
    shown = lost("list")
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == ["c1", "c2", "c3"]
    assert "TimedOut: no answer after 2 s" in shown.stdout
    assert "this log kept 4 calls; 1 dropped for newer ones, 0 for their age" in shown.stderr
    found = rows(lost("list", "--json", "--service", "billing"))
    assert [(each["id"], each["method"], each["side"], each["bytes"]) for each in found] == [
        ("c1", "total", "caller", 5),
        ("c3", "total", "provider", 51),
    ]


@pytest.mark.rows("P15")
def test_a_lost_call_is_shown_with_its_body(lost):
    shown = lost("show", "c2").stdout
    assert '{"to":"ann"}' in shown
    (found,) = rows(lost("show", "c1", "--json"))
    assert (found["body"], found["whole"], found["session"], found["text"]) == (
        "order",
        True,
        "customer-7",
        "no answer after 2 s",
    )
    (cut,) = rows(lost("show", "c3", "--json"))
    assert (cut["whole"], cut["bytes"]) == (False, 51)
    assert cut["body"].startswith("base64:////")
    assert "no lost call named 'c9'" in lost("show", "c9", code=1).stderr


def test_lost_calls_are_marked_for_a_resend(lost):
    assert "1 call will be sent again when the peer of" in lost("resend", "c1").stderr
    assert [each["resend"] for each in rows(lost("list", "--json"))].count(True) == 1
    done = lost("resend", "--all")
    assert "2 calls will be sent again" in done.stderr
    assert "1 call cannot be: not all of the body is kept" in done.stderr
    assert "50 of 51 bytes are kept" in lost("resend", "c3", code=1).stderr


def test_lost_calls_are_dropped(lost):
    assert "give --yes" in lost("drop", "c1", code=2).stderr
    assert "1 dropped" in lost("drop", "c1", "--yes").stderr
    assert "1 dropped" in lost("drop", "--all", "--service", "mail", "--yes").stderr
    assert [each["id"] for each in rows(lost("list", "--json"))] == ["c3"]
    assert "give the ids of calls, or --all" in lost("drop", "--yes", code=2).stderr
    assert "give the ids of calls, or --all" in lost("resend", "c3", "--all", code=2).stderr


def test_a_folder_without_lost_calls_is_not_made(tmp_path):
    done = CliRunner().invoke(app, ["lost", "list", "--log", str(tmp_path / "none")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no lost calls in" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_folder_that_a_running_peer_has_open_names_the_process(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from wherry.service.lost.log import LostLog\n"
        "from tests.unit.service.lost.samples import lost_call\n"
        "async def main():\n"
        f"    async with LostLog({str(tmp_path / 'lost')!r}) as log:\n"
        "        await log.keep(lost_call())\n"
        "        print('kept', flush=True)\n"
        "        sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        done = CliRunner().invoke(app, ["lost", "list", "--log", str(tmp_path / "lost")])
        assert done.exit_code == 1
        assert f"is in use by process {process.pid}" in done.stderr
        assert "until it ends" in done.stderr
        process.communicate("")
    assert process.returncode == 0
