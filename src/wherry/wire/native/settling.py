"""The settles of one session: those that came in one turn go to the settler together, in the order of their frames.

A release alone acts at once, before acks and nacks of the same turn.

Acks of a stream that follow each other are one call. If that call is refused, each request is settled by itself, so
that each gets the answer that it would have got alone.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

from wherry.broker.port.consume import SettlerPort
from wherry.model.calls.lease import NamedPart, OffsetRanges
from wherry.model.errors import NotFound, WherryError
from wherry.wire.native.codec.documents import decode_document
from wherry.wire.native.codec.settles import (
    RenewRequest,
    SettlePart,
    SettleRequest,
    SettleTerms,
    Verb,
    decode_renew,
    decode_settle,
)

GROUP_MAX = 65_536
"""Messages that acks are joined up to: until they are settled, each message that they name takes memory."""

SETTLES_MAX = 10_000
"""Settles of a session that are not on disk yet; beyond it the client is not read."""

Within = tuple[str, str]


class SettleListener(Protocol):
    """A session, as its settles see it."""

    def within(self, stream: int) -> Within:
        """Return the topic and subscription of a stream; raise if there is none, or the client lost its right."""

    def settled(self, number: int) -> None:
        """Answer a SETTLE or RENEW."""

    def refuse(self, number: int, fault: WherryError) -> None:
        """Answer a request with an error."""


class _Settle(NamedTuple):
    """One request: what it settles, and the subscription that its leases must be of."""

    number: int
    verb: int
    parts: list[NamedPart]
    terms: SettleTerms
    within: Within


_NO_TERMS = SettleTerms()


class Settles:
    """Settles and renewals of one session."""

    def __init__(self, settler: SettlerPort, session: SettleListener) -> None:
        self._settler, self._session = settler, session
        self._arrived: list[_Settle] = []
        self.under_way = 0
        """Settles that are not answered yet."""

    def settle(self, number: int, body: bytes) -> None:
        """Take a SETTLE; it is carried out by `carry_out`."""
        request: SettleRequest = decode_settle(body)
        within = self._session.within(request.stream)
        terms = _NO_TERMS
        if request.options:
            terms = decode_document("client", SettleTerms, request.options, "options")
        self._arrived.append(_Settle(number, request.verb, list(map(_part, request.parts)), terms, within))
        self.under_way += 1

    def renew(self, number: int, body: bytes) -> None:
        """Carry out a RENEW at once: it needs no entry in the journal."""
        request: RenewRequest = decode_renew(body)
        within = self._session.within(request.stream)
        self._settler.renew(request.tokens, request.lease_ms, within)
        self._session.settled(number)

    def carry_out(self) -> None:
        """Settle what arrived in this turn."""
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            for group in _groups(arrived):
                self._settle(group)

    def _settle(self, group: list[_Settle]) -> None:
        """Settle a group in one call; its answer comes when it is durable."""
        _, verb, parts, terms, within = group[0]
        answered = partial(self._answer, group)
        if len(group) > 1:
            parts = [part for each in group for part in each.parts]
        try:
            if verb == Verb.ACK:
                self._settler.ack_soon(parts, answered, within)
            elif verb == Verb.NACK:
                self._settler.nack_soon(parts, terms.delay_ms, terms.error, answered, within)
            elif verb == Verb.DEAD_LETTER:
                self._settler.dead_letter_soon(parts, terms.reason, terms.error, answered, within)
            else:
                self._settler.release(parts, within)
                answered(None)
        except WherryError as fault:
            answered(fault)

    def _answer(self, group: list[_Settle], fault: BaseException | None) -> None:
        """Answer a group; if it is refused, settle each request by itself."""
        if fault is not None and len(group) > 1:
            for each in group:
                self._settle([each])
            return
        for each in group:
            self.under_way -= 1
            if fault is None:
                self._session.settled(each.number)
            else:
                self._session.refuse(each.number, fault if isinstance(fault, WherryError) else broker_fault(fault))


def _groups(arrived: list[_Settle]) -> list[list[_Settle]]:
    """Return acks of one subscription that follow each other together, all else alone; in order."""
    if len(arrived) == 1:
        return [arrived]
    groups: list[list[_Settle]] = []
    named = 0
    for each in arrived:
        last = groups[-1][0] if groups else None
        count = sum(1 if offsets is None else len(offsets) for _, offsets in each.parts)
        named += count
        if (
            last is not None
            and each.verb == last.verb == Verb.ACK
            and each.within == last.within
            and named <= GROUP_MAX
        ):
            groups[-1].append(each)
        else:
            groups.append([each])
            named = count
    return groups


def _part(part: SettlePart) -> NamedPart:
    token, ranges = part
    if not ranges:
        return token, None
    first, count = ranges[0]
    if len(ranges) == 1:
        return token, OffsetRanges([(first, first + count)])
    return token, OffsetRanges.of([(first, first + count) for first, count in ranges])


def broker_fault(fault: BaseException) -> WherryError:
    """Return the error that a client gets for an exception that should not have been."""
    return WherryError(f"this is a fault of the broker, and it is in its log: {fault!r}")


def no_stream(number: int) -> NotFound:
    """Return the error for a stream that has ended, or never was."""
    return NotFound("stream", number)
