"""The client for callers without an event loop: the same calls, each waiting for its answer.

One thread in the background runs the async client. Producers and consumers cross over to it by the batch, not by the
message.
"""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from wherry.client.client import Client, connect
from wherry.client.link.credential import KeyOrSource
from wherry.client.link.pool import CONNECTIONS_MAX, TIMEOUT_S, WAITS_MAX
from wherry.client.native.transport import Wire
from wherry.client.options import CONSUMER, ConsumerOptions, ProducerOptions
from wherry.client.sync.ends import SyncBatch, SyncConsumer, SyncProducer
from wherry.client.sync.portal import Portal, waits

C = TypeVar("C", bound=Client)


def connect_sync(
    url: str = "http://127.0.0.1:7070",
    *,
    key: KeyOrSource = None,
    tls: ssl.SSLContext | None = None,
    wire: Wire = "auto",
    connections: int = CONNECTIONS_MAX,
    waits: int = WAITS_MAX,
    timeout_s: float = TIMEOUT_S,
) -> SyncClient[Client]:
    """Return a client of the broker at an address, for callers without an event loop: see `connect`.

    Examples
    --------
    >>> def main():
    ...     with wherry.connect_sync("http://127.0.0.1:7070") as client:
    ...         client.publish("jobs", [b"hello"])
    """
    bounds = {"connections": connections, "waits": waits}
    return SyncClient(connect(url, key=key, tls=tls, wire=wire, timeout_s=timeout_s, **bounds))


class SyncClient(Generic[C]):
    """The calls of `Client`, each waiting for its answer; `with` closes it, or `close`."""

    def __init__(self, opening: AbstractAsyncContextManager[C]) -> None:
        self.portal = Portal()
        self._opening = opening
        try:
            self.other = self.portal.run(_entered(opening))
        except BaseException:
            self.portal.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, and end the thread."""
        try:
            self.portal.run(_left(self._opening))
        finally:
            self.portal.close()

    create_topic = waits(Client.create_topic)
    change_topic = waits(Client.change_topic)
    delete_topic = waits(Client.delete_topic)
    topics = waits(Client.topics)
    topic = waits(Client.topic)
    stats = waits(Client.stats)
    subscribe = waits(Client.subscribe)
    subscription = waits(Client.subscription)
    change_subscription = waits(Client.change_subscription)
    unsubscribe = waits(Client.unsubscribe)
    put_route = waits(Client.put_route)
    delete_route = waits(Client.delete_route)
    routes = waits(Client.routes)
    make_key = waits(Client.make_key)
    keys = waits(Client.keys)
    change_key = waits(Client.change_key)
    delete_key = waits(Client.delete_key)
    publish = waits(Client.publish)
    publish_and_wait = waits(Client.publish_and_wait)
    publish_batch = waits(Client.publish_batch)
    publish_route = waits(Client.publish_route)
    stage = waits(Client.stage)
    commit = waits(Client.commit)
    abort = waits(Client.abort)
    get = waits(Client.get)
    fate = waits(Client.fate)
    cancel = waits(Client.cancel)
    amend = waits(Client.amend)
    browse = waits(Client.browse)
    search = waits(Client.search)
    scheduled = waits(Client.scheduled)
    dead_letters = waits(Client.dead_letters)
    redrive = waits(Client.redrive)
    discard = waits(Client.discard)
    audit = waits(Client.audit)

    def pull(
        self,
        topic: str,
        subscription: str,
        messages: int = 1_000,
        *,
        bytes_max: int = CONSUMER["pull_bytes"],
        wait_ms: int = 0,
        consumer: str | None = None,
    ) -> SyncBatch:
        """Pull up to so many messages on lease; an empty batch if none came in time."""
        work = self.other.pull(topic, subscription, messages, bytes_max=bytes_max, wait_ms=wait_ms, consumer=consumer)
        return SyncBatch(self.portal, self.portal.run(work))

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> SyncProducer:
        """Return a producer, which publishes messages one by one, batched in the background: see `ProducerOptions`."""
        return SyncProducer(self.portal, lambda: self.other.producer(topic, **options))

    def consumer(self, topic: str, subscription: str, **options: Unpack[ConsumerOptions]) -> SyncConsumer:
        """Return a consumer, which pulls in the background: see `ConsumerOptions`."""
        auto = options.get("ack") == "auto"
        return SyncConsumer(self.portal, lambda: self.other.consumer(topic, subscription, **options), auto=auto)


async def _entered(opening: AbstractAsyncContextManager[C]) -> C:
    return await opening.__aenter__()


async def _left(opening: AbstractAsyncContextManager[Any]) -> None:
    await opening.__aexit__(None, None, None)
