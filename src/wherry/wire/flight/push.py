"""Push: a subscription as a stream of batches, by credit, with acks on the way back.

Each stream has two threads: the thread of the call reads the client's messages, the other hands over messages of the
subscription. Both write to the client, under a lock.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.broker.port.consume import ConsumerPort, DeliveryPort
from wherry.broker.port.port import BrokerPort
from wherry.model.calls.lease import LOST
from wherry.model.calls.receipts import parse_receipts
from wherry.model.errors import Closed, InvalidInput, WherryError
from wherry.model.schema import DELIVERED
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.gate import Check
from wherry.wire.flight.terms import Push, Wish, decoded

PUSHED = DELIVERED.append(pa.field("lease", pa.int64(), nullable=False))
"""The columns that are pushed: those of a pull, and the fencing token of each message."""

WISHES = ("credit", "ack", "nack", "dead_letter", "renew")

BEAT_S = 30.0
"""How long a stream may be silent before it sends `alive`: only a write notices a cut connection."""


class Pushing:
    """One stream of pushed messages."""

    def __init__(
        self,
        broker: BrokerPort,
        bridge: Bridge,
        push: Push,
        writer: flight.MetadataRecordBatchWriter,
        context: flight.ServerCallContext,
        still: Check,
    ) -> None:
        self._broker, self._bridge, self._push, self._context = broker, bridge, push, context
        self._still = still
        self._settler = broker.settler
        self._writer = writer
        self._lock = threading.Lock()
        self._spoke = monotonic()
        self._consumer: ConsumerPort | None = None
        self._pushing: threading.Thread | None = None
        self._over = threading.Event()
        self._fault: WherryError | None = None

    def run(self, reader: flight.MetadataRecordBatchReader) -> None:
        """Serve the stream until the client ends its side or disconnects, or the subscription is deleted."""
        has_ended = False
        try:
            consumer = self._bridge.run(self._joined(), self._context)
            self._writer.begin(PUSHED)
            for chunk in reader:
                self._still()
                self._heed(decoded(Wish, chunk.app_metadata or b"", "message"), consumer)
                if self._fault is not None:
                    raise self._fault
            has_ended = not self._context.is_cancelled()
        finally:
            self._over.set()
            try:
                self._leave("" if has_ended else LOST)
            finally:
                if self._pushing is not None:
                    self._pushing.join()
        if self._fault is not None:
            raise self._fault

    async def _joined(self) -> ConsumerPort:
        """Join as a consumer; it is stored here on the loop, as the waiting thread may have ended by then."""
        push = self._push
        self._consumer = await self._broker.consumer(push.topic, push.subscription, push.consumer)
        return self._consumer

    def _leave(self, error: str = "") -> None:
        """Close the consumer: what it holds waits again, or, with an `error`, failed by that error.

        This runs on the loop, after a join that no thread waits for any more.
        """
        with suppress(Closed, CancelledError):  # then the broker closes the consumer itself
            self._bridge.run(self._left(error))

    async def _left(self, error: str) -> None:
        if self._consumer is not None:
            await self._consumer.close(error)

    def _heed(self, wish: Wish, consumer: ConsumerPort) -> None:
        """Do what a message of the client asks for; report an error in it, and continue the stream."""
        try:
            given = [name for name in WISHES if getattr(wish, name) is not None]
            if len(given) != 1:
                raise InvalidInput("message", given, "one of " + ", ".join(WISHES))
            if wish.credit is None:
                self._bridge.run(self._settled(given[0], wish), self._context)
                self._say({"done": wish.id})
            else:
                self._bridge.run(_granted(consumer, wish.credit), self._context)
                self._begin(consumer)
        except WherryError as fault:
            self._say({"fault": {"code": fault.code, "detail": str(fault)}, "id": wish.id})

    def _begin(self, consumer: ConsumerPort) -> None:
        """Start to hand over, at the first credit."""
        if self._pushing is None:
            self._pushing = threading.Thread(target=self._hand_over, args=(consumer,), daemon=True)
            self._pushing.start()

    async def _settled(self, how: str, wish: Wish) -> None:
        """Settle the parts of leases that are named; they must be of this subscription, whose right was checked."""
        parts = parse_receipts(getattr(wish, how))
        within = (self._push.topic, self._push.subscription)
        if how == "ack":
            await self._settler.ack(parts, within)
        elif how == "nack":
            await self._settler.nack(parts, wish.delay_ms, wish.error, within)
        elif how == "dead_letter":
            await self._settler.dead_letter(parts, wish.reason, wish.error, within)
        else:
            self._settler.renew([token for token, _ in parts], wish.lease_ms, within)

    def _hand_over(self, consumer: ConsumerPort) -> None:
        try:
            while not self._over.is_set():
                delivery = self._bridge.run(self._pulled(consumer), self._context)
                self._still()
                self._send(delivery)
        except CancelledError:
            self._end(Closed("the broker is closing"))
        except WherryError as fault:
            self._end(fault)
        except (pa.ArrowException, OSError) as fault:  # the client disconnected, which the thread of the call notices
            self._fault = WherryError(f"nothing can be pushed any more: {fault}")

    def _end(self, fault: WherryError) -> None:
        """Report why the stream ends, and close the consumer without waiting for the client to disconnect."""
        if not self._over.is_set():
            self._fault = fault
            self._leave()
            with suppress(pa.ArrowException, OSError):
                self._say({"fault": {"code": fault.code, "detail": str(fault)}})

    async def _pulled(self, consumer: ConsumerPort) -> DeliveryPort:
        return await consumer.pull(self._push.messages, bytes_max=self._push.bytes, wait_ms=1_000)

    def _send(self, delivery: DeliveryPort) -> None:
        if len(delivery):
            columns = [*delivery.batch.columns, pa.array(delivery.lease_column())]
            with self._lock:
                self._spoke = monotonic()
                self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PUSHED))
        elif monotonic() - self._spoke > BEAT_S:
            self._say({"alive": True})

    def _say(self, word: dict[str, Any]) -> None:
        with self._lock:
            self._spoke = monotonic()
            self._writer.write_metadata(msgspec.json.encode(word))


async def _granted(consumer: ConsumerPort, credit: int) -> None:
    consumer.grant(credit)
