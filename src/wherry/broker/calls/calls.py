"""What every face of the broker has: the shard, and the way to make a decision durable."""

from __future__ import annotations

from collections.abc import Callable

from wherry.broker.commit.shard import Choice, Shard, T
from wherry.model.catalog.webhook import check_url
from wherry.model.errors import WherryError


class BrokerCalls:
    """One group of calls on a shard; `Broker` is all of them together."""

    shard: Shard
    check_url: Callable[[str, str], object] = staticmethod(check_url)
    """Refuses a URL, in a field of that name, that must not be called; a node refuses more."""

    async def _durable(self, choose: Choice[T]) -> T:
        position, answer = await self._decided(choose)
        # An answer without an entry of its own rests on what others have written, which must be durable just the same.
        await self.shard.committer.wait(position or self.shard.committer.submitted)
        return answer

    async def _decided(self, choose: Choice[T]) -> tuple[int, T]:
        """Make a decision; on return it is not durable yet.

        A refusal has no position to wait for, and says something all the same: who repeats a cancel and is told that
        there is no such message, or an id and is told that it is taken, counts on it. So it waits here.
        """
        try:
            return await self.shard.decide(choose)
        except WherryError:
            await self.stored_so_far()
            raise

    async def stored_so_far(self) -> None:
        """Wait until everything that is in the state is durable: what an answer about the state rests on."""
        await self.shard.committer.wait(self.shard.committer.submitted)
