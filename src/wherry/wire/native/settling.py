"""The settles of one session: those that came in one turn go to the settler together, in the order of their frames.

Acks of a stream that follow each other are one call. If that call is refused, each request is settled by itself, so
that each gets the answer that it would have got alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from wherry.broker.port.consume import SettlerPort
from wherry.model.calls.lease import LeasePart
from wherry.model.errors import NotFound, WherryError
from wherry.model.ops import from_ranges
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

SETTLES_MAX = 10_000
"""Settles of a session that are not on disk yet; beyond it the client is not read."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]
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
    parts: list[LeasePart]
    terms: SettleTerms
    within: Within


_NO_TERMS = SettleTerms()


class Settles:
    """Settles and renewals of one session."""

    def __init__(self, settler: SettlerPort, session: SettleListener, spawn: Spawn) -> None:
        self._settler, self._session, self._spawn = settler, session, spawn
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
            self._spawn(self._carry_out(arrived))

    async def _carry_out(self, arrived: list[_Settle]) -> None:
        groups = _groups(arrived)
        if len(groups) == 1:
            await self._settle(groups[0])
        else:
            await asyncio.gather(*map(self._settle, groups))

    async def _settle(self, group: list[_Settle]) -> None:
        """Settle a group in one call, or, if that is refused, one by one."""
        try:
            await self._call(group)
        except WherryError as fault:
            if len(group) == 1:
                self._answer(group[0], fault)
                return
            for each in group:
                await self._settle([each])
            return
        for each in group:
            self._answer(each, None)

    def _answer(self, one: _Settle, fault: WherryError | None) -> None:
        self.under_way -= 1
        if fault is None:
            self._session.settled(one.number)
        else:
            self._session.refuse(one.number, fault)

    async def _call(self, group: Sequence[_Settle]) -> None:
        _, verb, parts, terms, within = group[0]
        if verb == Verb.ACK:
            if len(group) > 1:
                parts = [part for each in group for part in each.parts]
            await self._settler.ack(parts, within)
        elif verb == Verb.NACK:
            await self._settler.nack(parts, terms.delay_ms, terms.error, within)
        elif verb == Verb.DEAD_LETTER:
            await self._settler.dead_letter(parts, terms.reason, terms.error, within)
        else:
            self._settler.release(parts, within)


def _groups(arrived: list[_Settle]) -> list[list[_Settle]]:
    """Return acks of one subscription that follow each other together, all else alone; in order."""
    groups: list[list[_Settle]] = []
    for each in arrived:
        last = groups[-1][0] if groups else None
        if last is not None and each.verb == last.verb == Verb.ACK and each.within == last.within:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _part(part: SettlePart) -> LeasePart:
    token, ranges = part
    if not ranges:
        return token, None
    if len(ranges) == 1:
        first, count = ranges[0]
        return token, np.arange(first, first + count, dtype=np.int64)
    spans = np.array([(first, first + count) for first, count in ranges], np.int64).ravel()
    return token, np.unique(from_ranges(spans))


def no_stream(number: int) -> NotFound:
    """Return the error for a stream that has ended, or never was."""
    return NotFound("stream", number)
