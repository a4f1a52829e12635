"""The broker, in process: what every wire, client and test calls.

Its methods are in `calls/`, one module for each thing that callers do: `catalog`, `inventory`, `publish`, `consume`,
`messages`, `log`, `outcomes`, `dead_letters`, `figures`, `condition`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType

from wherry.broker.calls.catalog import CatalogCalls
from wherry.broker.calls.condition import ConditionCalls
from wherry.broker.calls.consume import ConsumeCalls
from wherry.broker.calls.dead_letters import DeadLetterCalls
from wherry.broker.calls.figures import FiguresCalls
from wherry.broker.calls.inventory import InventoryCalls
from wherry.broker.calls.log import LogCalls
from wherry.broker.calls.messages import MessageCalls
from wherry.broker.calls.outcomes import OutcomeCalls, Reports
from wherry.broker.calls.publish import PublishCalls
from wherry.broker.calls.settle import Settler
from wherry.broker.commit.gathering import Gathering
from wherry.broker.commit.shard import Shard
from wherry.broker.upkeep.housekeeping import Housekeeper
from wherry.model.errors import StorageError, WherryError, WriterFailed


class Broker(
    CatalogCalls,
    InventoryCalls,
    PublishCalls,
    ConsumeCalls,
    MessageCalls,
    LogCalls,
    OutcomeCalls,
    DeadLetterCalls,
    FiguresCalls,
    ConditionCalls,
):
    """Topics, subscriptions, messages. Made by `wherry.open`; every method that changes something is durable on return.

    Every method checks its input, and raises `InvalidInput` with the field, the value and what is allowed.
    """

    def __init__(self, shard: Shard, housekeeper: Housekeeper) -> None:
        self.shard = shard
        self._housekeeper = housekeeper
        self._settler = Settler(shard)
        self._reports = Reports(shard)
        self._gathering = Gathering(self, shard.turn)
        self._background = asyncio.create_task(self._run_housekeeper(), name="wherry housekeeping")
        self._named: Counter[str] = Counter()
        if shard.state.with_outcomes:
            shard.pending_outcomes.event.set()

    async def _run_housekeeper(self) -> None:
        try:
            await self._housekeeper.run()
        except Exception as fault:  # of any kind: without the housekeeper, memory would grow and leases would not end
            why = fault if isinstance(fault, WherryError) else WriterFailed(f"housekeeping ended: {fault!r}")
            self.shard.committer.fail(why)
            if not isinstance(fault, WherryError):
                raise

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued and a last checkpoint, then release the directory."""
        self.shard.committer.closing = True  # else clients that keep publishing would keep it open
        try:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)
            if self.shard.committer.failure is None:
                await self._housekeeper.last_checkpoint()
            await self.shard.committer.close()
        finally:
            await self.shard.writer.close()

    async def checkpoint(self) -> None:
        """Write a checkpoint now, so that recovery has little to read."""
        try:
            await self._housekeeper.checkpoint()
        except OSError as fault:
            raise StorageError(f"no checkpoint was written, and nothing is lost by it: {fault}") from fault
