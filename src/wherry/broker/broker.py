"""The broker, in process: what every wire, client and test calls.

Its calls are grouped by what people do: `catalogue`, `inventory`, `publish`, `consume`, `look`, `history`, `outcomes`,
`undertaker`, `measuring`, `condition`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType

from wherry.broker.calls.catalogue import Catalogue
from wherry.broker.calls.condition import Condition
from wherry.broker.calls.consume import Host
from wherry.broker.calls.gathering import Gathering
from wherry.broker.calls.history import Historian
from wherry.broker.calls.inventory import Inventory
from wherry.broker.calls.look import Looker
from wherry.broker.calls.outcomes import Outcomes
from wherry.broker.calls.publish import Publisher
from wherry.broker.calls.settle import Settler
from wherry.broker.calls.undertaker import Undertaker
from wherry.broker.commit.shard import Shard
from wherry.broker.metrics.measuring import Measuring
from wherry.broker.upkeep.housekeeping import Housekeeper
from wherry.model.errors import StorageError, WherryError, WriterFailed


class Broker(Catalogue, Inventory, Publisher, Host, Looker, Historian, Outcomes, Undertaker, Measuring, Condition):
    """Topics, subscriptions, messages. Made by `wherry.open`; every method that changes something is durable on return.

    Every method checks its input: what is wrong raises `InvalidInput` with the field, the value and what is allowed.
    """

    def __init__(self, shard: Shard, housekeeper: Housekeeper) -> None:
        self.shard = shard
        self._housekeeper = housekeeper
        self._settler = Settler(shard)
        self._gathering = Gathering(self)
        self._background = asyncio.create_task(self._run_housekeeper(), name="wherry housekeeping")
        self._named: Counter[str] = Counter()
        if shard.state.talkative:
            shard.news.event.set()

    async def _run_housekeeper(self) -> None:
        try:
            await self._housekeeper.run()
        except Exception as fault:  # whatever it is: without the housekeeper, memory and leases would stand still
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
        """Write what is queued and a last checkpoint, then let go of the directory."""
        self.shard.committer.closing = True  # else those who go on publishing would keep it open
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
