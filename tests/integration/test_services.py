"""Services as real processes: instances are killed, stopped and started while two callers go on.

Each call is noted by its caller, each run of a method by its instance; what they noted must agree.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.integration.service_worker import TIMEOUT_S, Noted

PATIENCE_S = 90.0
SLACK_S = 20.0
"""What a machine that is busy with other tests may add to a deadline: a call that hangs takes longer."""


class Processes:
    """The processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, what: str, name: str) -> subprocess.Popen[bytes]:
        """Start a process."""
        command = [sys.executable, "-m", "tests.integration.service_worker", what, str(self.folder), name]
        self.running[name] = process = subprocess.Popen(command)
        return process

    def provide(self, name: str) -> None:
        """Start an instance, and wait until it can be called."""
        known = len(self.lines(f"{name}.url"))
        self.begin("provide", name)
        self.until(lambda: len(self.lines(f"{name}.url")) > known and (self.folder / f"job-{name}.instance").exists())

    def kill(self, name: str) -> None:
        """Kill an instance; its record stays, as it does in a registry that has not noticed."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def lines(self, name: str) -> list[str]:
        """Return the whole lines that a process noted: a write that goes on may be seen in part, as a shorter name."""
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def called(self) -> list[Noted]:
        """Return all calls that ended."""
        return [
            msgspec.json.decode(line, type=Noted)
            for path in self.folder.glob("*.called")
            for line in self.lines(path.name)
        ]

    def ran(self) -> Counter[str]:
        """Return how often each call was run."""
        return Counter(line for path in self.folder.glob("*.ran") for line in self.lines(path.name))

    def ran_at(self, call: str) -> list[str]:
        """Return the instances that ran a call, once for each run."""
        return [path.stem for path in self.folder.glob("*.ran") for each in self.lines(path.name) if each == call]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)

    def close(self) -> None:
        """End all processes."""
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.close()


@pytest.mark.rows("P1", "P14")
@pytest.mark.parametrize("faults", [4, pytest.param(40, marks=pytest.mark.long)])
def test_no_call_is_run_twice_and_each_has_one_outcome_while_instances_are_killed_and_stopped(processes, faults):
    random, names = Random(faults), ["a", "b", "c"]
    for name in names:
        processes.provide(name)
    callers = [processes.begin("call", name) for name in ("one", "two")]
    for number in range(faults):
        share = len(processes.called())
        processes.until(lambda share=share: len(processes.called()) >= share + 150)
        name = random.choice(names)
        if number % 2:
            os.kill(processes.running[name].pid, signal.SIGSTOP)
            seen = len(processes.called())
            processes.until(lambda seen=seen: len(processes.called()) >= seen + 150)
            os.kill(processes.running[name].pid, signal.SIGCONT)
        else:
            processes.kill(name)
            seen = len(processes.called())
            processes.until(lambda seen=seen: len(processes.called()) >= seen + 150)
            processes.provide(name)
    (processes.folder / "stop").touch()
    for caller in callers:
        assert caller.wait(PATIENCE_S * 2) == 0

    called, ran = processes.called(), processes.ran()
    by_outcome = Counter(each.outcome for each in called)
    begun = [f"{name}-{number}" for name in ("one", "two") for number in processes.lines(f"{name}.begun")]
    assert sorted(each.call for each in called) == sorted(begun), "a call has no outcome, or two"
    assert {call: processes.ran_at(call) for call in ran if ran[call] != 1} == {}, "a call was run twice"
    assert all(ran[each.call] == 1 for each in called if each.outcome == "answered")
    assert all(ran[each.call] == 0 for each in called if each.outcome == "refused")
    assert all(each.unknown for each in called if each.outcome in ("lost", "timed out") and ran[each.call])
    assert by_outcome["answered"] > 300 * faults, by_outcome
    assert by_outcome["timed out"] + by_outcome["lost"] > 0, "no fault was met"
    assert max(each.seconds for each in called) < TIMEOUT_S + SLACK_S


@pytest.mark.rows("P10")
def test_a_new_process_gets_work_from_callers_that_run_already(processes):
    processes.provide("a")
    caller = processes.begin("call", "one")
    processes.until(lambda: len(processes.lines("a.ran")) > 50)
    processes.provide("b")
    processes.until(lambda: len(processes.lines("b.ran")) > 50)
    # One that leaves in order costs no call.
    processes.running["a"].terminate()
    assert processes.running.pop("a").wait(PATIENCE_S) == 0
    seen = len(processes.lines("b.ran"))
    processes.until(lambda: len(processes.lines("b.ran")) > seen + 50)
    (processes.folder / "stop").touch()
    assert caller.wait(PATIENCE_S) == 0
    assert {each.outcome for each in processes.called()} == {"answered"}


@pytest.mark.rows("P2")
def test_a_call_is_one_request_of_http_and_a_service_is_inspected_and_controlled_by_others(processes):
    processes.provide("a")
    url = urlsplit(processes.lines("a.url")[-1])

    def send(method: str, path: str, body: object = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        with closing(http.client.HTTPConnection(str(url.hostname), url.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    assert send("POST", "/services/job/run", "http-1") == (200, "a")
    status, listed = send("GET", "/services")
    assert (status, listed["instance"], [each["service"] for each in listed["services"]]) == (200, "a", ["job"])
    status, shown = send("GET", "/services/job")
    (method,) = shown["methods"]
    assert (method["name"], method["calls"]["answered"], method["max_concurrent"]) == ("run", 1, 8)
    assert method["argument"] == {"type": "string"}
    assert send("POST", "/services/job/control/pause", {"methods": ["run"]})[0] == 200
    status, problem = send("POST", "/services/job/run", "http-2")
    assert (status, problem["code"]) == (503, "paused")
    assert send("POST", "/services/job/control/resume", {})[0] == 200
    assert send("POST", "/services/job/control/limit", {"method": "run", "max_concurrent": 2})[0] == 200
    assert send("POST", "/services/job/run", "http-3") == (200, "a")
    assert processes.lines("a.ran") == ["http-1", "http-3"]
