"""Listens where the points report, and strikes where the plan asks for it."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.soak.plan import WIRE, Fault, Plan
from tests.spark.soak.points import DIE

if TYPE_CHECKING:
    from tests.spark.soak.rig import Rig

LOOK_S = 0.001


class Strikes:
    """The faults of one run. What `struck` lacks of the plan was not reached."""

    def __init__(self, plan: Plan, rig: Rig, files: Path) -> None:
        self._rig, self._files = rig, files
        self._left = [fault for fault in plan.faults if fault.point != WIRE]
        self._visits: Counter[tuple[str, str]] = Counter()
        self._counting, self._striking = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.struck: list[Fault] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._begin(self._listen)
        for fault in plan.faults:
            if fault.point == WIRE:
                rig.proxy.after(fault.visit, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
            elif (fault.query, fault.point) == ("parquet", "commit-after"):
                self._begin(lambda fault=fault: self._watch(fault))  # type: ignore[misc]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Strike nothing, with the broker running, until the end of the `with`."""
        with self._striking:
            yield

    def close(self) -> None:
        """Strike no more."""
        self._over.set()
        self._rig.proxy.forget()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._striking:  # a strike that was begun comes to its end
            pass
        for thread in self._threads:
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        """Answer a task at a point, which continues as soon as what is to happen there has happened."""
        with line:

            def go(word: str = "go") -> None:
                with suppress(OSError):  # the task that waited may be gone
                    line.sendall(f"{word}\n".encode())

            query, _, point = _report_of(line).partition(" ")
            at_once, soon = self._due(query, point)
            for fault in at_once:
                if fault.kind == "worker":
                    self.struck.append(fault)
                    go(DIE)
                else:
                    self._strike(fault, go)
            go()
            for fault in soon:
                time.sleep(fault.pause_s / 10)
                self._strike(fault)

    def _due(self, query: str, point: str) -> tuple[list[Fault], list[Fault]]:
        """Return what is to happen at this visit, and shortly after it in the JVM, where there is no point of ours."""
        with self._counting:
            self._visits[query, point] += 1
            visit = self._visits[query, point]
            due = [fault for fault in self._left if fault[1:4] == (query, point, visit)]
            soon = []
            if (query, point) == ("parquet", "write-after"):
                soon = [fault for fault in self._left if fault[1:4] == ("parquet", "commit-before", visit)]
            self._left = [fault for fault in self._left if fault not in due and fault not in soon]
        return due, soon

    def _watch(self, fault: Fault) -> None:
        """Strike as soon as Spark's list of files has a micro-batch, which its checkpoint has a little later."""
        number = fault.visit - 1
        names = [self._files / "_spark_metadata" / name for name in (f"{number}", f"{number}.compact")]
        while not self._over.is_set():
            if any(name.exists() for name in names):
                self._strike(fault)
                return
            time.sleep(LOOK_S)

    def _strike(self, fault: Fault, then: Callable[[], None] = lambda: None) -> None:
        """Strike, let the task that waits continue, and bring back what has to be there again."""
        rig = self._rig
        with self._striking:
            if self._over.is_set():
                return
            self.struck.append(fault)
            if fault.kind == "driver":
                rig.driver.kill()
            elif fault.kind == "executor":
                rig.kill_executor(fault.visit)
            elif fault.kind == "cut":
                rig.proxy.drop(fault.pause_s)
            elif fault.kind == "broker":
                rig.broker.end(signal.SIGKILL)
                then()
                rig.broker.start()
        then()


def _report_of(line: socket.socket) -> str:
    with suppress(OSError), line.makefile() as words:
        return words.readline().strip()
    return ""
