"""Transactions of a session: SENDs, ACKs and NACKs that wait for COMMIT, and then are one entry of the journal."""

from __future__ import annotations

from wherry.broker.broker import Broker
from wherry.wire.amqp import transaction as amqp
from wherry.wire.amqp.dealing import Dealt, Said
from wherry.wire.amqp.intake import Incoming, Intake
from wherry.wire.amqp.placing import Place
from wherry.wire.amqp.queue import Queue
from wherry.wire.stomp.codec import StompFault
from wherry.wire.stomp.subscriptions import Out

OPEN_MAX = 100
"""Transactions of one session."""


class Transaction:
    """What was said in it so far."""

    def __init__(self) -> None:
        self.messages: list[tuple[Queue, Incoming, Place]] = []
        self.settled: list[tuple[Out, Said]] = []
        self._size = 0

    def check(self, count: int, size: int = 0) -> None:
        """A transaction does not grow for ever."""
        most, most_bytes = amqp.TRANSACTION_MAX, amqp.TRANSACTION_BYTES_MAX
        if len(self.messages) + len(self.settled) + count > most or self._size + size > most_bytes:
            raise StompFault("Transaction too large", f"at most {most} frames and {most_bytes} bytes of bodies")
        self._size += size

    async def commit(self, broker: Broker, intake: Intake) -> list[tuple[Out, Said]]:
        """All messages and acks at once, or none of them; durable on return. What else is left to be said of messages.

        The caller holds the messages again if this fails.
        """
        rows: dict[Dealt, list[int]] = {}
        others: list[tuple[Out, Said]] = []
        for out, said in self.settled:
            if said == "ack":
                rows.setdefault(out.dealt, []).append(out.row)
            else:
                others.append((out, said))
        acks = [part for dealt, mine in rows.items() for part in dealt.parts(mine)]
        await amqp.commit(broker, intake.batches(self.messages), acks)
        for dealt, mine in rows.items():
            dealt.let_go(mine)
        for out, said in self.settled:
            if said == "ack":
                out.subscription.settled(1, out.size)
        return others
