"""What every group of the broker's calls has: the shard, and the way to make a decision durable."""

from __future__ import annotations

from collections.abc import Callable

from wherry.broker.commit.shard import Choice, Shard, T
from wherry.model.catalog.webhook import check_url
from wherry.model.errors import WherryError


class BrokerCalls:
    """One group of calls on a shard; `Broker` is all of them together."""

    shard: Shard
    check_url: Callable[[str, str], object] = staticmethod(check_url)
    """Raises `InvalidInput`, naming the field, for a URL that must not be called; a node refuses more URLs."""

    async def _durable(self, choose: Choice[T], *about: str) -> T:
        """Make a decision, and return its answer once it is durable.

        `about` names the topics whose messages the decision depends on; without a name it may depend on all of them.
        """
        position, answer = await self._decided(choose, *about)
        # An answer without an entry of its own rests on what others have written, which must be durable just the same.
        await self.shard.committer.wait(position or self.shard.committer.submitted)
        return answer

    async def _decided(self, choose: Choice[T], *about: str) -> tuple[int, T]:
        """Make a decision; on return it is not durable yet.

        A refusal has no position of its own, and clients rely on it all the same: after a repeated cancel, "no such
        message" means that the cancel worked; after a repeated publish, "this id is taken" means that the message is
        there. So a refusal is raised only when everything that it rests on is durable.
        """
        try:
            return await self.shard.decide(choose, about or None)
        except WherryError:
            await self.stored_so_far()
            raise

    async def stored_so_far(self) -> None:
        """Wait until everything in the state is durable, since an answer about the state rests on all of it."""
        await self.shard.committer.wait(self.shard.committer.submitted)
