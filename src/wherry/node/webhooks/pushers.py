"""A pusher for every subscription with a webhook, from its creation to its removal."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter

from wherry.broker.port.port import BrokerPort
from wherry.node.webhooks.pusher import Pusher
from wherry.node.webhooks.sender import WebhookSender

_log = logging.getLogger("wherry.webhooks")


class Pushers:
    """Follows the catalog: starts, replaces and stops pushers as webhooks are added, changed and removed."""

    def __init__(self, broker: BrokerPort, sender: WebhookSender) -> None:
        self._broker, self._sender = broker, sender
        self._is_open = False
        self._current: dict[int, asyncio.Task[None]] = {}
        self._all: set[asyncio.Task[None]] = set()
        """Pushers by subscription, with those whose last calls are under way."""
        self.removals: Counter[str] = Counter()
        """Subscriptions removed since the start, by reason: `down`, or `gone` (410)."""

    def __len__(self) -> int:
        return len(self._current)

    def start(self) -> None:
        """Push for all webhooks, present and future."""
        self._is_open = True
        self._broker.watch_webhooks(self._schedule)
        for number in self._broker.pushed_subscriptions():
            self._follow(number)

    def _schedule(self, number: int) -> None:
        """Schedule the start of a pusher, since the caller is in the middle of applying an entry."""
        asyncio.get_running_loop().call_soon(self._follow, number)

    def _follow(self, number: int) -> None:
        old = self._current.pop(number, None)
        if old is not None:
            old.cancel()
        subscription = self._broker.numbered_subscription(number)
        webhook = subscription.webhook if subscription is not None else None
        if subscription is None or webhook is None or not self._is_open:
            return
        pusher = Pusher(self._broker, self._sender, number, subscription, webhook, self.removals)
        run = pusher.run(lambda: self._broker.internal_consumer(number, f"webhook-{secrets.token_hex(4)}"))
        task = asyncio.create_task(run, name=f"wherry webhook {subscription.name}")
        self._current[number] = task
        self._all.add(task)
        task.add_done_callback(lambda done: self._ended(number, done))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._all.discard(task)
        if self._current.get(number) is task:
            del self._current[number]
        if not task.cancelled() and task.exception() is not None:
            _log.error("a pusher ended", exc_info=task.exception())

    async def close(self, patience_s: float) -> None:
        """Stop pulling; calls under way have `patience_s` to end, then their messages wait again."""
        self._is_open = False
        self._broker.watch_webhooks(None)
        for _ in range(2):
            for task in self._all:
                task.cancel()
            if self._all:
                await asyncio.wait(self._all, timeout=patience_s)
