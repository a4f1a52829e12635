"""All calls that a node makes, from its start to its stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from wherry.broker.port.port import BrokerPort
from wherry.node.config import WebhooksSection
from wherry.node.webhooks.callbacks import Callbacks
from wherry.node.webhooks.pushers import Pushers
from wherry.node.webhooks.sender import WebhookSender
from wherry.node.webhooks.targets import Targets


class Calls(NamedTuple):
    """The parts of a node that make calls."""

    pushers: Pushers
    callbacks: Callbacks
    sender: WebhookSender


@asynccontextmanager
async def calling(broker: BrokerPort, config: WebhooksSection, *, patience_s: float = 10.0) -> AsyncIterator[Calls]:
    """Push to webhooks and post outcomes until the end; then calls under way have `patience_s` to end."""
    targets = Targets(config.allow, allow_private=config.allow_private)
    sender = WebhookSender(targets, config.calls)
    pushers, callbacks = Pushers(broker, sender), Callbacks(broker, sender, config.secret)
    broker.check_url = targets.check
    pushers.start()
    callbacks.start()
    try:
        yield Calls(pushers, callbacks, sender)
    finally:
        await asyncio.gather(pushers.close(patience_s), callbacks.close(patience_s))
        sender.close()
        targets.close()
