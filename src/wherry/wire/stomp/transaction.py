"""Transactions of a session: SENDs, ACKs and NACKs that wait for COMMIT, and then are one entry of the journal."""

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
"""Transactions of one session."""

ROW_BYTES, PAIR_BYTES = 512, 192
"""What a message of a queue, or an ACK, and a header take in memory beside their bytes."""


def size_of(message: Rows) -> int:
    """Bytes of memory that a message takes."""
    return ROW_BYTES + message.body_bytes + len(message.envelope or b"") + PAIR_BYTES * len(message.headers or ())


class Transaction:
    """What was said in it so far."""

    def __init__(self, shared: Sessions) -> None:
        self._shared = shared
        self.messages: list[tuple[Queue, Rows, Handling]] = []
        self.settled: list[tuple[UnackedMessage, SettleVerb]] = []
        self.receipts: list[str] = []
        """Of its SENDs, to be given when they are stored."""
        self.size = 0
        """Bytes of memory, of which the shared counts those of all."""

    def send(self, rows: list[tuple[Queue, Rows, Handling]], row_size: int, receipt_id: str | None) -> None:
        """Take up a SEND: a message, once for each queue that it reaches."""
        self.check(len(rows), row_size, 0 if receipt_id is None else PAIR_BYTES + len(receipt_id))
        self.messages += rows
        if receipt_id is not None:
            self.receipts.append(receipt_id)

    def check(self, count: int, row_size: int = ROW_BYTES, more: int = 0) -> None:
        """A transaction does not grow for ever, nor do all together. A message counts for each queue it reaches."""
        most, most_bytes = transaction.TRANSACTION_MAX, transaction.TRANSACTION_BYTES_MAX
        size = count * row_size + more
        if len(self.messages) + len(self.settled) + count > most or self.size + size > most_bytes:
            raise StompFault("Transaction too large", f"at most {most} messages and acks, and {most_bytes} bytes")
        self.size += size
        self._shared.staged += size
        self._shared.check_staged()

    def drop_messages(self) -> None:
        """They are not needed any more, and what it took is free."""
        self.messages.clear()
        self._shared.staged -= self.size
        self.size = 0

    async def commit(self, broker: BrokerPort, intake: Intake) -> list[tuple[UnackedMessage, SettleVerb]]:
        """All messages and acks at once, or none of them; durable on return. What else is left to be said of messages.

        The caller holds the messages again if this fails.
        """
        rows: dict[QueueDelivery, list[int]] = {}
        others: list[tuple[UnackedMessage, SettleVerb]] = []
        for out, verb in self.settled:
            if verb == "ack":
                rows.setdefault(out.queue_delivery, []).append(out.row)
            else:
                others.append((out, verb))
        acks = [part for queue_delivery, mine in rows.items() for part in queue_delivery.parts(mine)]
        await transaction.commit(broker, intake.batches(self.messages), acks)
        for queue_delivery, mine in rows.items():
            queue_delivery.let_go(mine)
        for out, verb in self.settled:
            if verb == "ack":
                out.consumer.settled(1, out.size)
        return others
