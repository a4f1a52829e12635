"""A queue: a topic, the one subscription that its consumers share, and who of them gets which message.

The queue pulls from the broker as much as its consumers have room for, and deals it out in turn: to those of the
highest priority first, among these one by one, as this protocol promises.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from wherry.broker.port.consume import ConsumerPort, DeliveryPort
from wherry.broker.port.port import BrokerPort
from wherry.model.errors import WherryError
from wherry.queueing import clock
from wherry.queueing.flow.delivering import QueueDelivery, Settling, opened_up
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.message.envelope import Row
from wherry.queueing.names import SUBSCRIPTION, full_name

PULL_MAX = 1_000
"""Messages pulled at a time: enough to pay for the pull, and few enough to be fair."""

PULL_BYTES_MAX = 4 << 20

_log = logging.getLogger("wherry.queueing")


class Subscriber(Protocol):
    """A consumer of a channel."""

    priority: int

    def room(self) -> int:
        """How many messages it may be given now."""

    def shares(self) -> tuple[object, int] | None:
        """With whom it shares a room beside its own, and how large that is; None for nobody."""

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        """Some rows of a delivery for it; `messages` are all of the delivery, to be sent and not to be kept."""

    def gone(self) -> None:
        """Its queue is no more."""


class Queue:
    """One queue of a virtual host, as long as the node knows it."""

    def __init__(self, broker: BrokerPort, host: str, name: str, terms: QueueTerms, *, old_below: int = 0) -> None:
        self.host, self.name, self.terms = host, name, terms
        self.topic = full_name(host, name)
        self.number = broker.topic_number(self.topic)
        self.owner: object | None = None
        """The connection that it is exclusive to."""
        self.subscribers: list[Subscriber] = []
        self.exclusive_to: Subscriber | None = None
        self.was_consumed = False
        """Whether it ever had a consumer: a queue that deletes itself does so with its last one."""
        self.used_at = clock.now_s()
        self.max_priority = terms.max_priority or None
        self.ttl_ms = 0 if terms.holds_nothing else terms.message_ttl_ms
        self.is_plain = self.max_priority is None and self.ttl_ms is None
        """Whether all messages are alike to it, but for what they say themselves."""
        self._broker, self._settler = broker, broker.settler
        self._old_below = old_below
        """Messages below were there before this run, and may have been handed over in another one."""
        self._consumer: ConsumerPort | None = None
        self._pump: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._looks: list[asyncio.Future[None]] = []
        """Of those who wait until somebody has looked what is ready."""
        self._is_idle = False
        """Whether nothing was ready at the last look, and a new message is delivered as it comes."""
        self._turn = 0
        self._last_back: asyncio.Future[None] | None = None
        """Done when the last messages that were given back are in their place."""

    def ready(self) -> int:
        """How many messages wait to be handed over."""
        return self._broker.ready_count(self.topic, SUBSCRIPTION)  # none for a topic that was never consumed here

    def has_room(self) -> bool:
        """Whether a consumer would take a message right now."""
        return any(each.room() > 0 for each in self._eligible())

    def is_idle_for(self, now: float) -> float:
        """Seconds since somebody used it."""
        return 0.0 if self.subscribers else now - self.used_at

    # ----------------------------------------------------------------------------------------------------- consumers

    def join(self, subscriber: Subscriber) -> None:
        """One consumer more."""
        self.was_consumed = True
        self.subscribers.append(subscriber)
        self.wake()
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run(), name=f"wherry amqp {self.topic}")

    def leave(self, subscriber: Subscriber) -> None:
        """One less. What it holds stays with its channel."""
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)
        if self.exclusive_to is subscriber:
            self.exclusive_to = None
        self.used_at = clock.now_s()
        if not self.subscribers and self._pump is not None:
            self._stop()

    def wake(self) -> None:
        """A consumer has room."""
        self._room.set()

    def give_back(self, settling: Settling, queue_delivery: QueueDelivery, rows: list[int]) -> None:
        """Requeue rows of a delivery; nothing from behind them is pulled before they are in their place again."""
        back = self._last_back = asyncio.get_running_loop().create_future()
        settling.add(queue_delivery, "requeue", rows, lambda: None if back.done() else back.set_result(None))

    async def _all_back(self) -> None:
        """Wait for what is going back by now. What goes back later makes room later, and is not waited for."""
        back = self._last_back
        if back is not None:
            await back
        if self._last_back is back:
            self._last_back = None

    async def looked(self) -> None:
        """Until what is ready by now is on its way to whoever has room for it."""
        if self._pump is not None and not self._is_idle:
            self._looks.append(asyncio.get_running_loop().create_future())
            await self._looks[-1]

    def _end_looks(self) -> None:
        looks, self._looks = self._looks, []
        for look in looks:
            if not look.done():
                look.set_result(None)

    async def get(self) -> tuple[QueueDelivery, list[Row]] | None:
        """The next message, if there is one: a delivery of one row."""
        self.used_at = clock.now_s()
        delivery = await (await self._joined()).pull(1, wait_ms=0)
        return self._opened(delivery) if len(delivery) else None

    async def close(self) -> list[Subscriber]:
        """It is no more here; who consumed it until now."""
        if self._pump is not None:
            self._stop()
        subscribers, self.subscribers = self.subscribers, []
        if self._consumer is not None:
            await self._consumer.close()
        return subscribers

    def _stop(self) -> None:
        assert self._pump is not None
        self._pump.cancel()
        self._pump = None
        self._end_looks()  # it may not even have begun

    async def _joined(self) -> ConsumerPort:
        if self._consumer is None or not self._consumer.is_joined():
            self._consumer = await self._broker.consumer(self.topic, SUBSCRIPTION)
        return self._consumer

    # ------------------------------------------------------------------------------------------------------- dealing

    async def _run(self) -> None:
        try:
            consumer = await self._joined()
            while True:
                wanted = self._wanted()
                if wanted and self._last_back is not None:
                    await self._all_back()
                    wanted = min(wanted, self._wanted())
                if not wanted:
                    self._end_looks()
                    self._room.clear()
                    await self._room.wait()
                    continue
                delivery = await self._pulled(consumer, min(wanted, PULL_MAX))
                try:
                    self._deal(*self._opened(delivery))
                except Exception:  # a fault of ours: what others hold must not come back for it
                    _log.exception("messages were not handed over", extra={"queue": self.name, "host": self.host})
                    delivery.take_back()
                    await asyncio.sleep(1.0)
                self._end_looks()
                await asyncio.sleep(0)  # a pull that finds something does not wait: others have their turn
        except WherryError as fault:
            _log.info("no more deliveries", extra={"queue": self.name, "host": self.host, "why": str(fault)})
        except Exception:
            _log.exception("no more deliveries", extra={"queue": self.name, "host": self.host})
        finally:
            self._end_looks()
        # Its topic or subscription went over another wire, or the journal failed: who consumes it must know.
        self._pump = None
        for subscriber in await self.close():
            subscriber.gone()

    async def _pulled(self, consumer: ConsumerPort, wanted: int) -> DeliveryPort:
        """What is ready, or else what comes next."""
        if self._looks:
            delivery = await consumer.pull(wanted, bytes_max=PULL_BYTES_MAX, wait_ms=0)
            if len(delivery):
                return delivery
            self._end_looks()
        self._is_idle = True
        try:
            return await consumer.pull(wanted, bytes_max=PULL_BYTES_MAX, wait_ms=None)
        finally:
            self._is_idle = False

    def _wanted(self) -> int:
        """Return how many messages all consumers together have room for."""
        return sum(max(0, min(each.room(), PULL_MAX)) for each in self._eligible())

    def _opened(self, delivery: DeliveryPort) -> tuple[QueueDelivery, list[Row]]:
        counted = self.terms.arguments.get("x-queue-type") == "quorum"
        return opened_up(self._settler, delivery, self.name, self._old_below, counted=counted)

    def _eligible(self) -> list[Subscriber]:
        """Those that may be given something, whether they have room or not."""
        if self.terms.single_active:
            return self.subscribers[:1]
        return self.subscribers

    def _deal(self, queue_delivery: QueueDelivery, messages: list[Row]) -> None:
        if len(self.subscribers) == 1 and self.subscribers[0].room() >= queue_delivery.count:
            self.subscribers[0].take(queue_delivery, list(range(queue_delivery.count)), messages)
            return
        left = list(range(queue_delivery.count))
        eligible = self._eligible()
        for priority in sorted({each.priority for each in eligible}, reverse=True):
            takers = [each for each in eligible if each.priority == priority]
            shares, left = self._in_turn(left, takers)
            for taker, share in zip(takers, shares, strict=True):
                if share:
                    taker.take(queue_delivery, share, messages)
        if left:
            queue_delivery.release(left)  # at once: what comes behind them must not go before them

    def _in_turn(self, rows: list[int], takers: list[Subscriber]) -> tuple[list[list[int]], list[int]]:
        """One row for each in turn, as long as they have room: what each gets, and the rows that are left."""
        rooms = [each.room() for each in takers]
        shared = [each.shares() for each in takers]
        common = dict(each for each in shared if each is not None)
        shares: list[list[int]] = [[] for _ in takers]
        given, misses = 0, 0
        while given < len(rows) and misses < len(takers):
            at = self._turn % len(takers)
            self._turn += 1
            others = shared[at]
            if len(shares[at]) < rooms[at] and (others is None or common[others[0]] > 0):
                shares[at].append(rows[given])
                given, misses = given + 1, 0
                if others is not None:
                    common[others[0]] -= 1
            else:
                misses += 1
        return shares, rows[given:]
