"""What a peer loses, kept: its calls without a result in a log on its disk, and sent again while the peer runs.

A caller waits until its call is on disk, for a bounded time, so that its error says truly whether the call is kept. A
provider waits for nothing. It never makes a failure of the log one of the call.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from wherry.mesh.registry import Roster
from wherry.model.schema import Message, compact
from wherry.service.calling.attempt import CallAttempt
from wherry.service.calling.caller import ServiceCaller
from wherry.service.losses import LostWhere, OnResent
from wherry.service.lost.log import LostLog
from wherry.service.lost.lost_call import LostCall
from wherry.service.lost.records import argument_of, context_of, of_caller, of_provider, timeout_s_of
from wherry.service.lost.resending import Resending
from wherry.service.outcomes import CallError, CallOutcome
from wherry.service.providing.running import ProvidedCall

KEEP_S: Final = 1.0
"""How long a caller waits for the disk before it gets its error."""


class Keeping:
    """The lost calls of one peer, at both sides of it."""

    def __init__(self, where: LostWhere, instance_id: str, on_resent: OnResent | None = None) -> None:
        self._is_given = isinstance(where, LostLog)
        self.log = where if isinstance(where, LostLog) else LostLog(where)
        self._instance_id, self._on_resent = instance_id, on_resent
        self._ids, self._prefix = count(1), secrets.token_hex(12)
        self._tasks: set[asyncio.Task[bool]] = set()
        self._resending: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------------------ keep

    async def of_caller(self, call: CallAttempt, fault: CallError) -> None:
        """Keep a call that this peer made; its error is marked if it is on disk."""
        record = of_caller(call, fault, _now_ms())
        if record is None:
            return
        task = self._begin(record)
        await asyncio.wait({task}, timeout=KEEP_S)  # which leaves it to itself if this caller is cancelled
        fault.call_id, fault.is_kept = record.id, task.done() and task.result()

    def of_provider(self, call: ProvidedCall, outcome: CallOutcome) -> None:
        """Keep a call that this peer was to answer."""
        record = of_provider(call, outcome, f"{self._prefix}-{next(self._ids)}", self._instance_id, _now_ms())
        if record is not None:
            _ = self._begin(record)

    def _begin(self, record: LostCall) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(self.log.keep(record), name="wherry lost call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ----------------------------------------------------------------------------------------------------------- again

    def start(self, caller: ServiceCaller) -> None:
        """Send kept calls again from now on, those of an earlier process too."""

        async def send(call: LostCall) -> None:
            result = await caller.call(
                f"{call.service}.{call.method}",
                argument_of(call),
                timeout_s=timeout_s_of(call),
                session=call.session,
                resend=None,
                context=context_of(call),
            )
            if self._on_resent is not None:
                self._on_resent(call, result)

        self._resending = asyncio.create_task(self._run(send, caller.roster), name="wherry resending")

    async def _run(self, send: Callable[[LostCall], Any], roster: Roster) -> None:
        # Arrow loads what it needs with its first array, which would hold up the loop just when calls fail.
        await asyncio.to_thread(compact, Message(payload=b"", headers={"side": ""}))
        resending = Resending(self.log, send, lambda service: bool(roster.of(service)))
        stop = roster.watch(resending.changed)
        try:
            await resending.run()
        finally:
            stop()

    # ------------------------------------------------------------------------------------------------------------- end

    async def stop(self) -> None:
        """Send no more; what is under way is sent again by the next process."""
        if self._resending is not None:
            self._resending.cancel()
            await asyncio.gather(self._resending, return_exceptions=True)

    async def close(self) -> None:
        """Wait until everything is kept, and close the log."""
        await asyncio.gather(*self._tasks)
        if not self._is_given:
            await self.log.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
