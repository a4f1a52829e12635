"""Processes for the tests of services: one provides `job`, another one calls it and notes each outcome.

python -m tests.integration.service_worker provide FOLDER INSTANCE
python -m tests.integration.service_worker call FOLDER NAME
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from zlib import crc32

import msgspec

from wherry.mesh.instance import Instance, decode, encode
from wherry.mesh.registry import Roster
from wherry.service.outcomes import CallError
from wherry.service.peer import peer
from wherry.service.service import Service

LOOK_S = 0.02
UNDER_WAY = 16
TIMEOUT_S = 1.0


def id_in(folder: Path, name: str) -> str:
    """Return the id of an instance, which no other test that runs on this machine has.

    A port of an instance that was killed may be given to one of another test, whose services have the same names.
    """
    return f"{name}-{crc32(os.fsencode(folder)):08x}"


class FolderRegistry:
    """A registry of processes on one machine: a file for each instance, in a folder that all of them read."""

    def __init__(self, folder: Path) -> None:
        self.roster = Roster()
        self._folder = folder
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the folder, again and again."""
        self._look()
        self._looking = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        found: dict[str, list[Instance]] = {}
        for path in self._folder.glob("*.instance"):
            with suppress(OSError):  # it was withdrawn meanwhile
                one = decode(path.read_bytes())
                found.setdefault(one.service, []).append(one)
        self.roster.replace_all(found)

    async def announce(self, instance: Instance) -> None:
        """Write the file of an instance, whole."""
        path = self._path(instance.service, instance.id)
        draft = path.with_suffix(".draft")
        draft.write_bytes(encode(instance))
        draft.replace(path)

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Remove the file of an instance."""
        self._path(service, instance_id).unlink(missing_ok=True)

    def _path(self, service: str, instance_id: str) -> Path:
        return self._folder / f"{service}-{instance_id}.instance"

    async def close(self) -> None:
        """Read no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


class Noted(msgspec.Struct):
    """The end of one call, as its caller notes it."""

    call: str
    outcome: str
    instance: str
    unknown: bool
    seconds: float


def note(path: Path, line: bytes) -> None:
    """Append a line; one write, so that a kill leaves whole lines."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line + b"\n")
    os.close(descriptor)


async def provide(folder: Path, instance: str) -> None:
    """Provide `job` until SIGTERM."""
    job = Service("job")

    @job.method(max_concurrent=8, max_waiting=64)
    async def run(call: str) -> str:
        note(folder / f"{instance}.ran", call.encode())
        await asyncio.sleep(0.002)
        return instance

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    registry = FolderRegistry(folder)
    await registry.start()
    async with peer(registry=registry, provides=[job], instance_id=id_in(folder, instance)) as provider:
        note(folder / f"{instance}.url", provider.url.encode())
        await stopped.wait()
    await registry.close()


async def call(folder: Path, name: str) -> None:
    """Make calls, each with an id of its own, until the folder has a file `stop`."""
    registry = FolderRegistry(folder)
    await registry.start()
    numbers, stop = count(), folder / "stop"

    async def one_after_the_other() -> None:
        while not stop.exists():
            number = next(numbers)
            note(folder / f"{name}.begun", b"%d" % number)
            asked, began = f"{name}-{number}", time.monotonic()
            try:
                instance, outcome, unknown = (
                    await caller.call("job.run", asked, timeout_s=TIMEOUT_S),
                    "answered",
                    False,
                )
            except CallError as fault:
                instance, outcome, unknown = fault.instance, fault.outcome.value, fault.is_unknown
                await asyncio.sleep(0.005)
            noted = Noted(asked, outcome, instance, unknown, time.monotonic() - began)
            note(folder / f"{name}.called", msgspec.json.encode(noted))

    async with peer(registry=registry) as caller:
        await asyncio.gather(*(one_after_the_other() for _ in range(UNDER_WAY)))
    await registry.close()


if __name__ == "__main__":
    what, where, who = sys.argv[1:]
    asyncio.run(provide(Path(where), who) if what == "provide" else call(Path(where), who))
