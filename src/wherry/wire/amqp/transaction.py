"""The transaction of a channel: publishes and settles that wait for a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.model.calls.rows import Handling, Rows
from wherry.queueing.flow import transaction
from wherry.queueing.flow.delivering import SettleVerb
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.refusals import Reason, refused

if TYPE_CHECKING:
    from wherry.wire.amqp.channel import UnackedMessage


class Transaction:
    """Publishes and settles that wait for a commit."""

    def __init__(self) -> None:
        self.messages: list[tuple[Queue, Rows, Handling]] = []
        self.settled: list[tuple[UnackedMessage, SettleVerb]] = []
        self._count = self._size = 0

    def add(self, queue: Queue, messages: Rows, handling: Handling) -> None:
        """Add messages for a queue."""
        self.check(len(messages.payloads), messages.body_bytes)
        self.messages.append((queue, messages, handling))

    def check(self, count: int, size: int = 0) -> None:
        """Raise a refusal if the transaction would grow beyond its bounds."""
        self._count += count
        self._size += size
        most, most_bytes = transaction.TRANSACTION_MAX, transaction.TRANSACTION_BYTES_MAX
        if self._count > most or self._size > most_bytes:
            text = f"a transaction has at most {most} publishes and acks, and {most_bytes} bytes"
            raise refused(Reason.RESOURCE_ERROR, text)

    def parted(self) -> tuple[list[UnackedMessage], list[tuple[UnackedMessage, SettleVerb]]]:
        """Return the messages that are acked, and the others with their verbs."""
        acked: list[UnackedMessage] = []
        others: list[tuple[UnackedMessage, SettleVerb]] = []
        for unacked, verb in self.settled:
            if verb == "ack" or (verb == "reject" and unacked.queue.terms.dead_exchange is None):
                acked.append(unacked)
            else:
                others.append((unacked, verb))
        return acked, others
