"""What every face of the broker has: the shard, and the way to make a decision durable."""

from __future__ import annotations

from collections.abc import Callable

from wherry.broker.shard import Choice, Shard, T
from wherry.model.webhook import check_url


class Face:
    """One group of calls on a shard; `Broker` is all of them together."""

    shard: Shard
    check_url: Callable[[str, str], object] = staticmethod(check_url)
    """Refuses a URL, in a field of that name, that must not be called; a node refuses more."""

    async def _durable(self, choose: Choice[T]) -> T:
        position, answer = await self.shard.decide(choose)
        # An answer without an entry of its own rests on what others have written, which must be durable just the same.
        await self.shard.committer.wait(position or self.shard.committer.submitted)
        return answer
