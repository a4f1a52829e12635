"""Push: a subscription as a stream of batches, by credit, with acks on the way back.

Two threads for each stream: the one of the call reads what the client wants, the other hands over what there is. Both
write, so each takes the lock for it.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.broker.broker import Broker
from wherry.broker.consumer import Consumer, Delivery
from wherry.broker.receipts import parse_receipts
from wherry.broker.settle import Part, Settler
from wherry.core import leasing
from wherry.model.errors import Closed, InvalidInput, StaleLease, WherryError
from wherry.model.schema import DELIVERED
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.terms import Push, Wish, decoded

PUSHED = DELIVERED.append(pa.field("lease", pa.int64(), nullable=False))
"""What is pushed: what a pull gives, and the fencing token of each message."""

WISHES = ("credit", "ack", "nack", "reject", "extend")


class Pushing:
    """One stream."""

    def __init__(
        self,
        broker: Broker,
        bridge: Bridge,
        push: Push,
        writer: flight.MetadataRecordBatchWriter,
        context: flight.ServerCallContext,
    ) -> None:
        self._broker, self._bridge, self._push, self._context = broker, bridge, push, context
        self._settler = Settler(broker.shard)
        self._writer = writer
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._fault: WherryError | None = None

    def run(self, reader: flight.MetadataRecordBatchReader) -> None:
        """Until the client ends its side, is gone, or the subscription is."""
        push, broker = self._push, self._broker
        consumer = self._bridge.run(broker.consumer(push.topic, push.subscription, push.consumer), self._context)
        self._writer.begin(PUSHED)
        pushing: threading.Thread | None = None
        try:
            for chunk in reader:
                wish = decoded(Wish, chunk.app_metadata or b"", "message")
                if wish.credit is not None:
                    self._bridge.run(_granted(consumer, wish.credit), self._context)
                    if pushing is None:
                        pushing = threading.Thread(target=self._hand_over, args=(consumer,), daemon=True)
                        pushing.start()
                else:
                    self._settle(wish)
                if self._fault is not None:
                    raise self._fault
        finally:
            self._over.set()
            with suppress(Closed):  # then the broker lets go of it by itself
                self._bridge.run(consumer.close())
            if pushing is not None:
                pushing.join()
        if self._fault is not None:
            raise self._fault

    def _settle(self, wish: Wish) -> None:
        try:
            self._bridge.run(self._settled(wish), self._context)
        except WherryError as fault:
            self._say({"fault": {"code": fault.code, "detail": str(fault)}, "id": wish.id})
        else:
            self._say({"done": wish.id})

    async def _settled(self, wish: Wish) -> None:
        given = [name for name in WISHES if getattr(wish, name) is not None]
        if len(given) != 1:
            raise InvalidInput("message", given, "one of " + ", ".join(WISHES))
        parts = self._parts(getattr(wish, given[0]))
        if given[0] == "ack":
            await self._settler.ack(parts)
        elif given[0] == "nack":
            await self._settler.nack(parts, wish.delay_ms, wish.error)
        elif given[0] == "reject":
            await self._settler.dead_letter(parts, wish.reason, wish.error)
        else:
            self._settler.renew([token for token, _ in parts], wish.lease_ms)

    def _parts(self, receipts: list[str]) -> list[Part]:
        """The parts of leases that are named, which must be of this subscription: others have their own rights."""
        state = self._broker.shard.state
        subscription = state.subscription(self._push.topic, self._push.subscription)
        parts = parse_receipts(receipts)
        for token, _ in parts:
            if leasing.held(state, token).subscription != subscription.number:
                raise StaleLease(token, "belongs to another subscription")
        return parts

    def _hand_over(self, consumer: Consumer) -> None:
        try:
            while not self._over.is_set():
                self._send(self._bridge.run(self._pulled(consumer), self._context))
        except CancelledError:
            self._end(Closed("the broker is closing"))
        except WherryError as fault:
            self._end(fault)
        except (pa.ArrowException, OSError) as fault:  # the client is gone, which the thread of the call notices
            self._fault = WherryError(f"nothing can be pushed any more: {fault}")

    def _end(self, fault: WherryError) -> None:
        """Say why no more comes; the client hangs up then."""
        if not self._over.is_set():
            self._fault = fault
            with suppress(pa.ArrowException, OSError):
                self._say({"fault": {"code": fault.code, "detail": str(fault)}})

    async def _pulled(self, consumer: Consumer) -> Delivery:
        return await consumer.pull(self._push.messages, bytes_max=self._push.bytes, wait_ms=1_000)

    def _send(self, delivery: Delivery) -> None:
        if len(delivery):
            columns = [*delivery.batch.columns, pa.array(delivery.lease_column())]
            with self._lock:
                self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PUSHED))

    def _say(self, word: dict[str, Any]) -> None:
        with self._lock:
            self._writer.write_metadata(msgspec.json.encode(word))


async def _granted(consumer: Consumer, credit: int) -> None:
    consumer.grant(credit)
