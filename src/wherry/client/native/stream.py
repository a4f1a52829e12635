"""One stream of a session: messages that the broker pushes by credit, and their settles.

subscribe ──► open ──► messages ──► end (CANCEL, ERROR, or the connection is lost): leases are gone
               └─ the broker says GOODBYE: no more messages; those that are held can still be settled
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from wherry.client.batch import LEASE, Batch, Leased, LeaseParts
from wherry.client.frames import decode_stream
from wherry.client.native.rows import PushedRows
from wherry.client.requests import SubscriptionRequests
from wherry.model.calls.receipts import TOKEN_MAX
from wherry.model.errors import StaleLease, Unavailable, WherryError
from wherry.model.limits import OFFSET_MAX
from wherry.wire.native.codec.deliveries import decode_deliver, encode_credit
from wherry.wire.native.codec.documents import StreamTerms, SubscribeTerms, encode_cancel, encode_options
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.settles import SettleTerms, Verb, encode_renew, encode_settle

if TYPE_CHECKING:
    from wherry.client.native.session import NativeSession

VERBS = {"ack": Verb.ACK, "nack": Verb.NACK, "dead-letter": Verb.DEAD_LETTER, "release": Verb.RELEASE}

NEEDED = {LEASE, "partition", "offset", "published", "attempt", "payload"}
"""Columns that each delivered message has."""

CANCEL_S = 3.0
"""How long a stream that is cancelled waits for the broker's word; after that its connection is cut."""


class ClientStream:
    """A `BatchRequests` of the messages that it delivers.

    `take` gets each batch, and the bytes that it came in. `ended` has the error that ended the stream, or None.
    """

    def __init__(
        self, session: NativeSession, requests: SubscriptionRequests, take: Callable[[Batch, int], None]
    ) -> None:
        self._session, self._requests, self._take = session, requests, take
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[StreamTerms] = loop.create_future()
        self.ended: asyncio.Future[WherryError | None] = loop.create_future()
        self.left: asyncio.Future[None] = loop.create_future()
        """Done when no more messages come: at its end, or before that at a GOODBYE of the broker."""
        self.credit = 0
        """Messages that the broker may still push."""
        self._is_open = False

    def subscribe(self, terms: SubscribeTerms) -> None:
        """Ask the broker for the stream; `opened` has its answer."""
        self.credit = terms.credit
        self.number = self._session.subscribe(terms, self)

    @property
    def is_over(self) -> bool:
        """Whether its leases are gone."""
        return self.ended.done()

    def grant(self, messages: int) -> None:
        """Let the broker push so many messages more."""
        self.credit += messages
        self._session.send(encode_credit(self.number, messages))

    async def cancel(self) -> None:
        """End the stream: messages still held wait again, and no attempt is counted."""
        if self.is_over:
            return
        self._session.send(encode_cancel(self.number, stream=True))
        done, _ = await asyncio.wait([self.ended], timeout=CANCEL_S)
        if not done:
            self._session.end(f"did not end a stream within {CANCEL_S:g} s")

    def finish(self) -> None:
        """End a stream that the broker left: nothing of it is held any more, or the reader took too long."""
        if not self.is_over:
            self.ended.set_result(None)
            self._session.forget(self.number)

    # ------------------------------------------------------------------------------------------------------- arrived

    def open(self, terms: StreamTerms) -> None:
        """Note that the broker opened the stream."""
        self._acks, self._is_open = terms.acks, True
        if not self.opened.done():
            self.opened.set_result(terms)

    def deliver(self, flags: int, body: bytes) -> None:
        """Hand over the messages of a DELIVER as one batch."""
        if not self._is_open:
            raise WireFault("server", "id", self.number, "a stream that the server has opened")
        if flags & Flag.ARROW:
            batch = Batch.pulled(self, _decoded(body), acks=self._acks)
        else:
            rows = decode_deliver(body)
            for row in rows:  # here, since a call for each delivery would cost as much as the loop
                if row[0] > TOKEN_MAX or row[2] > OFFSET_MAX:
                    raise WireFault("server", "offset", row[:3], f"up to {OFFSET_MAX}, and a token up to {TOKEN_MAX}")
            batch = PushedRows(self, rows, acks=self._acks)
        self.credit -= batch.count
        if self.credit < 0:
            raise WireFault("server", "credit", batch.count, f"at most {self.credit + batch.count} messages")
        if self._acks:
            batch.stream = self
        if not self.left.done():
            self._take(batch, len(body))

    def leave(self) -> None:
        """Note that the broker drains: it pushes no more."""
        if not self.left.done():
            self.left.set_result(None)
        if not self.opened.done():
            self.end(Unavailable("the broker is closing"))

    def end(self, fault: WherryError | None) -> None:
        """Note that the stream has ended."""
        if not self.opened.done():
            self.opened.set_exception(fault or Unavailable("the broker ended the stream"))
            self.opened.exception()  # the consumer may have stopped waiting for it
        if not self.ended.done():
            self.ended.set_result(fault)
        if not self.left.done():
            self.left.set_result(None)

    # -------------------------------------------------------------------------------------------------------- settle

    def ack(self, message: Leased) -> asyncio.Future[None]:
        """See `batch.AckStream`."""
        part = message.batch.lease_of(message.row)
        if self.ended.done() or self._session.is_closed:
            return self._refused(message, StaleLease(part[0], self.why))
        session = self._session
        number = session.next_number()
        return session.request(number, encode_settle(number, self.number, Verb.ACK, [part]), message)

    def _refused(self, message: Leased, fault: WherryError) -> asyncio.Future[None]:
        message.batch.acked(message.row, fault)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(fault)
        return refused

    async def settle(self, verb: str, parts: LeaseParts, **fields: object) -> None:
        """See `batch.BatchRequests`."""
        if verb.startswith("stage:"):
            await self._requests.settle(verb, parts, **fields)
            return
        self._check_open(parts[0][0])
        if verb == "renew":
            lease_ms, tokens = fields.get("lease_ms"), [token for token, _ in parts]
            number = self._session.next_number()
            await self._session.request(number, encode_renew(number, self.number, tokens, lease_ms))  # type: ignore[arg-type]
            return
        given = {name: value for name, value in fields.items() if value is not None}
        options = encode_options(SettleTerms(**given)) if given else b""  # type: ignore[arg-type]
        number = self._session.next_number()
        await self._session.request(number, encode_settle(number, self.number, VERBS[verb], parts, options))

    def _check_open(self, token: int) -> None:
        if self.ended.done() or self._session.is_closed:
            raise StaleLease(token, self.why)

    @property
    def why(self) -> str:
        """Why the leases of the stream are gone, once it has ended."""
        fault = self.ended.result() if self.ended.done() else None
        return f"the stream has ended: {fault or 'the connection is closed'}"


def _decoded(body: bytes) -> pa.RecordBatch:
    try:
        batch = decode_stream(body)
    except Unavailable as fault:
        raise WireFault("server", "messages", f"{len(body)} bytes", f"an Arrow stream ({fault})") from None
    if not batch.num_rows or not NEEDED.issubset(batch.schema.names):
        allowed = f"at least one message, with {', '.join(sorted(NEEDED))}"
        raise WireFault("server", "messages", f"{batch.num_rows} of {batch.schema.names}", allowed)
    return batch
