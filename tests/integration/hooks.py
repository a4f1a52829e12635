"""A node that calls webhooks, and what the tests of them share."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.receiver import Receiver, until
from wherry.node.config import Config, ServerSection, StorageSection, WebhooksSection
from wherry.node.node import Node
from wherry.node.process import _loop_factory

SECRET = "a secret of 26 characters."
AT_ONCE = wherry.Retry(attempts=3, first_ms=10, cap_ms=10, jitter=0.0)


@asynccontextmanager
async def serving(home: Path, **webhooks: Any) -> AsyncIterator[tuple[Node, wherry.Client]]:
    """Start a node that may call this machine, and a client of it."""
    config = Config(
        server=ServerSection(port=0, drain_s=1.0),
        storage=StorageSection(path=str(home)),
        webhooks=WebhooksSection(**{"allow_private": True, **webhooks}),
    )
    async with Node(config) as node, wherry.connect(node.url) as client:
        yield node, client


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run_it(**fixtures: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await test(**fixtures)

        with asyncio.Runner(loop_factory=_loop_factory()) as runner:  # the loop that nodes run on
            runner.run(main())

    return run_it


def resolve(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Resolve names in `.hangs` when the event is set, or after a while; all others are this machine."""
    answer = threading.Event()

    def look_up(host: str, port: object, **options: object) -> list[Any]:
        if str(host).endswith(".hangs"):
            answer.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return answer


def hook(receiver: Receiver, **fields: Any) -> wherry.Webhook:
    return wherry.Webhook(url=receiver.url, secret=SECRET, **fields)


async def subscribed(client: wherry.Client, name: str, webhook: wherry.Webhook, **fields: Any) -> None:
    await client.create_topic("jobs")
    await client.subscribe("jobs", name, webhook=webhook, **{"retry": AT_ONCE, **fields})


async def lag(client: wherry.Client, name: str = "me") -> int:
    return next(each.lag for each in (await client.stats("jobs")).subscriptions if each.name == name)


async def drained(client: wherry.Client, name: str = "me") -> None:
    async def is_empty() -> bool:
        return await lag(client, name) == 0

    await until(is_empty)


async def removed(client: wherry.Client) -> tuple[wherry.Removal, ...]:
    async def removals() -> tuple[wherry.Removal, ...]:
        return (await client.stats("jobs")).removals

    return await until(removals)
