"""A queue: a topic, the one subscription that its consumers share, and the choice of the consumer for each message.

The queue pulls from the broker as much as its consumers have room for, and hands it over as AMQP promises: to consumers
of the highest priority first, and round robin among consumers of the same priority.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from wherry.broker.port.consume import ConsumerPort, DeliveryPort
from wherry.broker.port.port import BrokerPort
from wherry.model.errors import WherryError
from wherry.queueing import clock
from wherry.queueing.flow.delivering import QueueDelivery, Settling, queue_delivery_of
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.message.envelope import Row
from wherry.queueing.names import SUBSCRIPTION, full_name

PULL_MAX = 1_000
"""Messages pulled at a time: enough to pay for the pull, and few enough to be fair."""

PULL_BYTES_MAX = 4 << 20

_log = logging.getLogger("wherry.queueing")


class WireConsumer(Protocol):
    """A consumer of a queue, on any wire."""

    priority: int

    def room(self) -> int:
        """Return how many messages the consumer may be given now."""

    def shares(self) -> tuple[object, int] | None:
        """Return the holder of a limit that several consumers share, and the room left in it; None for none."""

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        """Take some rows of a delivery; `messages` are all messages of the delivery, to be sent and not to be kept."""

    def deliveries_ended(self) -> None:
        """End the consumer, since the queue delivers no more: it was deleted, or its deliveries failed."""


class Queue:
    """One queue of a virtual host."""

    def __init__(self, broker: BrokerPort, host: str, name: str, terms: QueueTerms, *, old_below: int = 0) -> None:
        self.host, self.name, self.terms = host, name, terms
        self.topic = full_name(host, name)
        self.number = broker.topic_number(self.topic)
        self.owner: object | None = None
        """The connection that the queue is exclusive to."""
        self.consumers: list[WireConsumer] = []
        self.exclusive_to: WireConsumer | None = None
        self.was_consumed = False
        """Whether the queue ever had a consumer: an auto-delete queue is deleted when its last consumer leaves."""
        self.used_at = clock.now_s()
        self.max_priority = terms.max_priority or None
        self.ttl_ms = 0 if terms.holds_nothing else terms.message_ttl_ms
        self.is_plain = self.max_priority is None and self.ttl_ms is None
        """Whether the queue adds nothing to the expiry or the priority that messages have themselves."""
        self._broker, self._settler = broker, broker.settler
        self._old_below = old_below
        """Messages below this offset are from an earlier run of the node, and may have been handed over in it."""
        self._broker_consumer: ConsumerPort | None = None
        self._pump: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._handover_waiters: list[asyncio.Future[None]] = []
        """Waiters of `wait_for_hand_over`."""
        self._is_idle = False
        """Whether nothing was ready at the last pull, so that a new message is delivered as it arrives."""
        self._is_failing = False
        """Whether the last hand-over failed."""
        self._next_consumer = 0
        self._last_back: asyncio.Future[None] | None = None
        """Done when the last messages that were given back are in their place."""

    def ready(self) -> int:
        """Return how many messages wait to be handed over."""
        return self._broker.ready_count(self.topic, SUBSCRIPTION)  # 0 before the first consumer made the subscription

    def has_room(self) -> bool:
        """Return whether a consumer would take a message right now."""
        return any(each.room() > 0 for each in self._eligible())

    def idle_s(self, now: float) -> float:
        """Return how many seconds ago the queue was used last."""
        return 0.0 if self.consumers else now - self.used_at

    # ----------------------------------------------------------------------------------------------------- consumers

    def join(self, consumer: WireConsumer) -> None:
        """Add a consumer."""
        self.was_consumed = True
        self.consumers.append(consumer)
        self.wake()
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run(), name=f"wherry queue {self.topic}")

    def leave(self, consumer: WireConsumer) -> None:
        """Remove a consumer. The messages that it holds stay on lease: its wire settles or requeues them."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        if self.exclusive_to is consumer:
            self.exclusive_to = None
        self.used_at = clock.now_s()
        if not self.consumers and self._pump is not None:
            self._stop()

    def wake(self) -> None:
        """Note that a consumer has room."""
        self._room.set()

    def give_back(self, settling: Settling, queue_delivery: QueueDelivery, rows: list[int]) -> None:
        """Requeue rows of a delivery; nothing from behind them is pulled before they are in their place again."""
        back = self._last_back = asyncio.get_running_loop().create_future()
        settling.add(queue_delivery, "requeue", rows, lambda: None if back.done() else back.set_result(None))

    async def _all_back(self) -> None:
        """Wait until the rows given back so far are in their place; rows given back later are not waited for."""
        back = self._last_back
        if back is not None:
            await back
        if self._last_back is back:
            self._last_back = None

    async def wait_for_hand_over(self) -> None:
        """Wait until the messages that are ready now are on their way to consumers that have room."""
        if self._pump is not None and not self._is_idle:
            self._handover_waiters.append(asyncio.get_running_loop().create_future())
            await self._handover_waiters[-1]

    def _wake_handover_waiters(self) -> None:
        waiters, self._handover_waiters = self._handover_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def get(self) -> tuple[QueueDelivery, list[Row]] | None:
        """Return the next message, if there is one, as a delivery of one row."""
        self.used_at = clock.now_s()
        delivery = await (await self._joined()).pull(1, wait_ms=0)
        return self._queue_delivery(delivery) if len(delivery) else None

    async def close(self) -> list[WireConsumer]:
        """Stop delivering; return the consumers that the queue had."""
        if self._pump is not None:
            self._stop()
        consumers, self.consumers = self.consumers, []
        if self._broker_consumer is not None:
            await self._broker_consumer.close()
        return consumers

    def _stop(self) -> None:
        assert self._pump is not None
        self._pump.cancel()
        self._pump = None
        self._wake_handover_waiters()  # the pump may not even have begun

    async def _joined(self) -> ConsumerPort:
        if self._broker_consumer is None or not self._broker_consumer.is_joined():
            self._broker_consumer = await self._broker.consumer(self.topic, SUBSCRIPTION)
        return self._broker_consumer

    # ------------------------------------------------------------------------------------------------------- hand-over

    async def _run(self) -> None:
        try:
            broker_consumer = await self._joined()
            while True:
                wanted = self._in_room()
                if wanted and self._last_back is not None:
                    await self._all_back()
                    wanted = min(wanted, self._in_room())
                if not wanted:
                    self._wake_handover_waiters()
                    self._room.clear()
                    await self._room.wait()
                    continue
                delivery = await self._pulled(broker_consumer, min(wanted, PULL_MAX))
                if len(delivery) and not self._handed(delivery):
                    await asyncio.sleep(1.0)
                self._is_failing = False
                self._wake_handover_waiters()
                await asyncio.sleep(0)  # a pull that finds something does not wait: let other tasks run
        except WherryError as fault:
            _log.info("deliveries ended", extra={"queue": self.name, "host": self.host, "why": str(fault)})
        except Exception:
            _log.exception("deliveries ended", extra={"queue": self.name, "host": self.host})
        finally:
            self._wake_handover_waiters()
        # The topic or subscription was deleted over another wire, the journal failed, or the broker has a bug: all of
        # them end the consumers, also where the queue still exists, since nothing would be delivered to them any more.
        self._pump = None
        for consumer in await self.close():
            consumer.deliveries_ended()

    async def _pulled(self, consumer: ConsumerPort, wanted: int) -> DeliveryPort:
        """Return messages that are ready; if there are none, wait for the next."""
        if self._handover_waiters:
            delivery = await consumer.pull(wanted, bytes_max=PULL_BYTES_MAX, wait_ms=0)
            if len(delivery):
                return delivery
            self._wake_handover_waiters()
        self._is_idle = True
        try:
            return await consumer.pull(wanted, bytes_max=PULL_BYTES_MAX, wait_ms=None, taker=self)
        finally:
            self._is_idle = False

    def wanted(self) -> int:
        """See `Taker`: none from behind rows that were given back and are not in their place yet."""
        return 0 if self._last_back is not None and not self._last_back.done() else self._in_room()

    def room(self) -> int:
        """See `Taker`: how many messages consumers take while the pull waits, so that no task is woken for each."""
        return 0 if self._is_failing else self.wanted()

    def take(self, delivery: DeliveryPort) -> None:
        """See `Taker`. After a failure the task goes on, which waits before it tries again."""
        self._is_failing = not self._handed(delivery)

    def _handed(self, delivery: DeliveryPort) -> bool:
        """Hand a delivery over to consumers; return False if that failed: what they do not hold waits again."""
        try:
            self._hand_over(*self._queue_delivery(delivery))
        except Exception:  # a fault of the broker: rows that consumers hold stay with them
            _log.exception("messages were not handed over", extra={"queue": self.name, "host": self.host})
            delivery.take_back()
            return False
        return True

    def _in_room(self) -> int:
        """Return how many messages all consumers together have room for."""
        return sum(max(0, min(each.room(), PULL_MAX)) for each in self._eligible())

    def _queue_delivery(self, delivery: DeliveryPort) -> tuple[QueueDelivery, list[Row]]:
        counted = self.terms.arguments.get("x-queue-type") == "quorum"
        return queue_delivery_of(self._settler, delivery, self.name, self._old_below, counted=counted)

    def _eligible(self) -> list[WireConsumer]:
        """Return the consumers that may be given messages, whether they have room or not."""
        if self.terms.single_active:
            return self.consumers[:1]
        return self.consumers

    def _hand_over(self, queue_delivery: QueueDelivery, messages: list[Row]) -> None:
        if len(self.consumers) == 1 and self.consumers[0].room() >= queue_delivery.count:
            self.consumers[0].take(queue_delivery, list(range(queue_delivery.count)), messages)
            return
        left = list(range(queue_delivery.count))
        eligible = self._eligible()
        for priority in sorted({each.priority for each in eligible}, reverse=True):
            sharing = [each for each in eligible if each.priority == priority]
            shares, left = self._round_robin(left, sharing)
            for consumer, share in zip(sharing, shares, strict=True):
                if share:
                    consumer.take(queue_delivery, share, messages)
        if left:
            queue_delivery.release(left)  # at once, so that later messages do not overtake them

    def _round_robin(self, rows: list[int], sharing: list[WireConsumer]) -> tuple[list[list[int]], list[int]]:
        """Give one row to each consumer in turn while it has room; return the rows of each, and the rows left over."""
        rooms = [each.room() for each in sharing]
        shared = [each.shares() for each in sharing]
        common = dict(each for each in shared if each is not None)
        shares: list[list[int]] = [[] for _ in sharing]
        given, misses = 0, 0
        while given < len(rows) and misses < len(sharing):
            at = self._next_consumer % len(sharing)
            self._next_consumer += 1
            others = shared[at]
            if len(shares[at]) < rooms[at] and (others is None or common[others[0]] > 0):
                shares[at].append(rows[given])
                given, misses = given + 1, 0
                if others is not None:
                    common[others[0]] -= 1
            else:
                misses += 1
        return shares, rows[given:]
