"""Transactions of a session: SENDs, ACKs and NACKs that wait for COMMIT, and are then one entry of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.rows import Handling, Rows
from wherry.queueing.flow import transaction
from wherry.queueing.flow.delivering import QueueDelivery, SettleVerb
from wherry.queueing.flow.intake import Intake
from wherry.queueing.hosts.queue import Queue
from wherry.wire.stomp.codec import StompFault
from wherry.wire.stomp.subscriptions import UnackedMessage

if TYPE_CHECKING:
    from wherry.wire.stomp.sessions import Sessions

OPEN_MAX = 100
"""Open transactions of one session."""

ROW_BYTES, PAIR_BYTES = 512, 192
"""Memory of a message or an ACK, and of a header, beside their bytes."""


def size_of(message: Rows) -> int:
    """Return the bytes of memory that a message uses."""
    return ROW_BYTES + message.body_bytes + len(message.envelope or b"") + PAIR_BYTES * len(message.headers or ())


class Transaction:
    """The frames of a transaction so far."""

    def __init__(self, shared: Sessions) -> None:
        self._shared = shared
        self.messages: list[tuple[Queue, Rows, Handling]] = []
        self.settled: list[tuple[UnackedMessage, SettleVerb]] = []
        self.receipts: list[str] = []
        """Receipts of its SENDs, to be sent when they are stored."""
        self.size = 0
        """Bytes of memory; `Sessions.staged` is the sum of all."""

    def send(self, rows: list[tuple[Queue, Rows, Handling]], row_size: int, receipt_id: str | None) -> None:
        """Add a SEND: a message, once for each queue that it is routed to."""
        self.check(len(rows), row_size, 0 if receipt_id is None else PAIR_BYTES + len(receipt_id))
        self.messages += rows
        if receipt_id is not None:
            self.receipts.append(receipt_id)

    def check(self, count: int, row_size: int = ROW_BYTES, more: int = 0) -> None:
        """Raise a fault if this transaction, or all together, would grow too large. A message counts for each queue."""
        most, most_bytes = transaction.TRANSACTION_MAX, transaction.TRANSACTION_BYTES_MAX
        size = count * row_size + more
        if len(self.messages) + len(self.settled) + count > most or self.size + size > most_bytes:
            raise StompFault("Transaction too large", f"at most {most} messages and acks, and {most_bytes} bytes")
        self.size += size
        self._shared.staged += size
        self._shared.check_staged()

    def drop_messages(self) -> None:
        """Free the messages, and the memory that they used."""
        self.messages.clear()
        self._shared.staged -= self.size
        self.size = 0

    async def commit(self, broker: BrokerPort, intake: Intake) -> list[tuple[UnackedMessage, SettleVerb]]:
        """Make all publishes and acks, or none; durable on return. Return the requeues and rejects to be made.

        The caller holds the messages again if this fails.
        """
        rows: dict[QueueDelivery, list[int]] = {}
        others: list[tuple[UnackedMessage, SettleVerb]] = []
        for message, verb in self.settled:
            if verb == "ack":
                rows.setdefault(message.queue_delivery, []).append(message.row)
            else:
                others.append((message, verb))
        acks = [part for queue_delivery, mine in rows.items() for part in queue_delivery.parts(mine)]
        await transaction.commit(broker, intake.batches(self.messages), acks)
        for queue_delivery, mine in rows.items():
            queue_delivery.let_go(mine)
        for message, verb in self.settled:
            if verb == "ack":
                message.consumer.settled(1, message.size)
        return others
