"""Five instances and three callers as processes, while instances are killed and stand still and their registry goes.

Each call is noted by its caller, each run by its instance. What they noted, and what the callers' logs of lost calls
hold at the end, must agree.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.integration.lost_service_worker import TIMEOUT_S, Ended
from tests.ports import free_port
from tests.registries.zookeeper_server import ZooKeeper
from wherry.service.lost.log import LostLog
from wherry.service.lost.lost_call import LostCall

PATIENCE_S = 120.0
SLACK_S = 30.0
"""What a machine that is busy with other tests may add to a deadline: a call that hangs takes longer."""

INSTANCES = ("a", "b", "c", "d", "e")
CALLERS = ("one", "two", "three")


class Site:
    """The processes of one test, and a registry that can be taken away from them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def take_registry(self) -> None:
        """End the registry at once."""

    def return_registry(self) -> None:
        """Start it again."""

    def begin(self, role: str, name: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.integration.lost_service_worker",
            role,
            str(self.folder),
            name,
            self.url,
        ]
        self.running[name] = subprocess.Popen(command)

    def provide(self, *names: str) -> None:
        """Start instances, and wait until each listens."""
        known = {name: len(self.lines(f"{name}.url")) for name in names}
        for name in names:
            self.begin("provide", name)
        self.until(lambda: all(len(self.lines(f"{name}.url")) > known[name] for name in names), "instances listen")

    def kill(self, *names: str) -> None:
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running.pop(name).wait()

    def lines(self, pattern: str) -> list[str]:
        return [line for path in self.folder.glob(pattern) for line in path.read_text().split("\n")[:-1]]

    def called(self) -> list[Ended]:
        return [msgspec.json.decode(line, type=Ended) for line in self.lines("*.called")]

    def go_on(self, answered: int, lost: int = 0) -> None:
        """Let the callers go on until so many more calls were answered, and so many not."""
        before = self.called()
        good = sum(each.outcome == "answered" for each in before)

        def enough() -> bool:
            now = self.called()
            more = sum(each.outcome == "answered" for each in now) - good
            return more >= answered and len(now) - len(before) - more >= lost

        self.until(enough, f"{answered} more answered, {lost} more lost")

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            ended = {name: each.poll() for name, each in self.running.items() if each.poll() not in (None, 0)}
            assert not ended, f"a process failed: {ended}"
            assert time.monotonic() < end, f"it did not come: {what}"
            time.sleep(0.05)

    def finish(self) -> None:
        """Let the callers end in order, which they do when all that is to be sent again was answered."""
        (self.folder / "stop").touch()
        for name in CALLERS:
            assert self.running.pop(name).wait(PATIENCE_S) == 0

    def close(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


class WithZooKeeper(Site):
    """Processes that find each other by ZooKeeper."""

    def __init__(self, folder: Path) -> None:
        (folder / "zookeeper").mkdir()
        self._server = ZooKeeper(folder / "zookeeper")
        self._server.start()
        super().__init__(folder, f"zk://{self._server.address}/wherry")

    def take_registry(self) -> None:
        self._server.kill()

    def return_registry(self) -> None:
        self._server.start()

    def close(self) -> None:
        super().close()
        self._server.kill()


class WithGossip(Site):
    """Processes that find each other by gossip; a seed that provides nothing is taken away."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self._seed_url, self._ups = f"gossip://127.0.0.1:{port}?port={port}", 0
        super().__init__(folder, f"gossip://127.0.0.1:{port}")
        self.return_registry()

    def take_registry(self) -> None:
        self.kill("seed")

    def return_registry(self) -> None:
        self._ups += 1
        others, self.url = self.url, self._seed_url
        self.begin("seed", "seed")
        self.url = others
        self.until(lambda: len(self.lines("seed.up")) == self._ups, "the seed is there")


SITES = {"zookeeper": WithZooKeeper, "gossip": WithGossip}


@contextmanager
def site(kind: str, folder: Path):
    found = SITES[kind](folder)
    try:
        yield found
    finally:
        found.close()


def logs(folder: Path) -> dict[str, LostCall]:
    """Return what the callers' logs of lost calls hold, by what was asked."""

    async def read() -> dict[str, LostCall]:
        found: dict[str, LostCall] = {}
        for name in CALLERS:
            async with LostLog(folder / f"{name}.lost") as log:
                found |= {msgspec.msgpack.decode(each.body, type=str): each async for each in log.calls()}
        return found

    return asyncio.run(read())


def check(found: Site) -> Counter[str]:
    """Check that all that was noted agrees; return how many calls ended in which way."""
    called, kept = found.called(), logs(found.folder)
    resent = Counter(line.split()[0] for line in found.lines("*.resent"))
    ran = Counter(line.split()[0] for line in found.lines("*.ran"))
    ids = {line.split()[1]: line.split()[0] for line in found.lines("*.ran")}
    answered = {each.call for each in called if each.outcome == "answered"}
    lost = [each for each in called if each.outcome != "answered"]
    assert sorted(each.call for each in called) == sorted(found.lines("*.begun")), "a call has no outcome, or two"
    assert max(each.seconds for each in called) < TIMEOUT_S + SLACK_S, "a call hung"
    in_log = {name: each.id for name, each in kept.items()}
    assert in_log == {each.call: each.id for each in lost if not each.resend}, "a lost call was not kept"
    assert set(resent.values()) <= {1}, "a resend was answered twice"
    assert not resent.keys() & answered, "a call was answered, and answered again"
    assert resent.keys() == {each.call for each in lost if each.resend}, (
        "a lost call was not sent again, or not answered"
    )
    assert all(ran[name] for name in answered | resent.keys()), "an answer without a run"
    assert len(ids) == len(ran), "a repeat came with another id"
    by_id = {line.split()[1]: line.split()[0] for line in found.lines("*.resent")}
    assert all(ids[call_id] == name for call_id, name in by_id.items())
    return Counter(each.outcome for each in called) + Counter(resent=len(resent))


def one_of_each(found: Site) -> None:
    """Let each fault come once, the last one while another is there."""
    found.go_on(200)
    found.kill("a")
    os.kill(found.running["b"].pid, signal.SIGSTOP)
    found.go_on(200, lost=2)
    found.take_registry()
    found.go_on(200)
    os.kill(found.running["b"].pid, signal.SIGCONT)
    found.return_registry()
    found.kill("b", "c", "d", "e")
    found.go_on(0, lost=12)
    found.provide("a", "b")
    found.go_on(200)


def many(found: Site, random: Random) -> None:
    """Let faults come by chance; after each, those that were killed are started again."""
    for _ in range(20):
        fault = random.choice(("kill", "kill", "stop", "stop", "registry", "all"))
        some = random.sample(INSTANCES, 5 if fault == "all" else random.randint(1, 3))
        found.go_on(100)
        if fault == "stop":
            for name in some:
                os.kill(found.running[name].pid, signal.SIGSTOP)
            found.go_on(50, lost=1)
            for name in some:
                os.kill(found.running[name].pid, signal.SIGCONT)
        elif fault == "registry":
            found.take_registry()
            found.go_on(100)
            found.return_registry()
        else:
            found.kill(*some)
            found.go_on(0 if fault == "all" else 100, lost=6 if fault == "all" else 0)
            found.provide(*some)
    found.go_on(100)


@pytest.mark.rows("P14", "P15", "P16")
@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("seed", [None, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5))])
def test_no_call_is_lost_silently_while_instances_and_registries_fail(kind, seed, tmp_path):
    with site(kind, tmp_path) as found:
        for name in CALLERS:
            found.begin("call", name)
        found.provide(*INSTANCES)
        if seed is None:
            one_of_each(found)
        else:
            many(found, Random(seed))
        found.finish()
        counted = check(found)
    assert counted["resent"] >= 3, counted
