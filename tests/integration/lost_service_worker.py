"""Processes for the test of services that lose calls: one provides `job`, another one calls it and notes each outcome.

python -m tests.integration.lost_service_worker provide FOLDER INSTANCE REGISTRY
python -m tests.integration.lost_service_worker call FOLDER NAME REGISTRY
python -m tests.integration.lost_service_worker seed FOLDER NAME REGISTRY
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from tests.integration.service_worker import id_in, note
from wherry.service.current import current_call
from wherry.service.losses import Losses
from wherry.service.lost.lost_call import LostCall
from wherry.service.outcomes import CallError
from wherry.service.peer import peer
from wherry.service.service import Service

UNDER_WAY = 4
TIMEOUT_S = 2.0
PAUSE_S = 0.03
FAILED_PAUSE_S = 0.2
"""After a call without an answer: while no instance is there, calls fail at once."""


class Ended(msgspec.Struct):
    """The end of one call, as its caller notes it."""

    call: str
    id: str
    """Of the call, where it had no answer."""
    outcome: str
    kept: bool
    resend: bool
    seconds: float


async def provide(folder: Path, instance: str, registry: str) -> None:
    """Provide `job` until the process is killed."""
    job = Service("job", lost=folder / f"{instance}.lost")

    @job.method(max_concurrent=64)
    async def run(call: str) -> str:
        running = current_call()
        assert running is not None
        note(folder / f"{instance}.ran", f"{call} {running.context().call_id}".encode())
        await asyncio.sleep(0.005)
        return call

    async with peer(registry=registry, provides=[job], instance_id=id_in(folder, instance)) as provider:
        note(folder / f"{instance}.url", provider.url.encode())
        await _stopped()


async def seed(folder: Path, name: str, registry: str) -> None:
    """Be a member that others begin with."""
    async with peer(registry=registry):
        note(folder / f"{name}.up", b"up")
        await _stopped()


async def _stopped() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


async def call(folder: Path, name: str, registry: str) -> None:
    """Make calls until the folder has a file `stop`; end when all that were to be sent again are answered."""
    numbers, stop = count(), folder / "stop"

    def on_resent(lost: LostCall, result: Any) -> None:
        note(folder / f"{name}.resent", f"{result} {lost.id}".encode())

    async def one_after_the_other() -> None:
        while not stop.exists():
            number = next(numbers)
            asked, resend = f"{name}-{number}", number % 2 == 0
            note(folder / f"{name}.begun", asked.encode())
            began = time.monotonic()
            call_id, outcome, kept = "", "answered", False
            try:
                assert await caller.call("job.run", asked, timeout_s=TIMEOUT_S, resend=resend) == asked
            except CallError as fault:
                call_id, outcome, kept = fault.call_id, fault.outcome.value, fault.is_kept
            ended = Ended(asked, call_id, outcome, kept, resend, time.monotonic() - began)
            note(folder / f"{name}.called", msgspec.json.encode(ended))
            await asyncio.sleep(PAUSE_S if outcome == "answered" else FAILED_PAUSE_S)

    async with peer(registry=registry, lost=Losses(log=folder / f"{name}.lost", on_resent=on_resent)) as caller:
        await asyncio.gather(*(one_after_the_other() for _ in range(UNDER_WAY)))
        log = caller.lost
        assert log is not None
        while [each async for each in log.calls() if each.resend]:  # noqa: ASYNC110  nothing reports it
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    role, where, who, url = sys.argv[1:]
    asyncio.run({"provide": provide, "call": call, "seed": seed}[role](Path(where), who, url))
