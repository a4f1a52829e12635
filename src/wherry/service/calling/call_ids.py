"""Ids of calls, by which a provider tells a repeat from a new call; they travel in the context of a call."""

from __future__ import annotations

import secrets
from itertools import count

from wherry.model import check
from wherry.wire.native.codec.invokes import CALL_ID_CHARS_MAX, CallContext

SESSION_BYTES_MAX = 256


class CallIds:
    """Gives ids: a random part, of which each caller has one, and a number."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(12)
        self._numbers = count(1)

    def context(self, session: str | None, given: CallContext | None, *, always: bool) -> CallContext:
        """Return the context of a call, with its session, and with a new id if it has none and one is `always` wanted.

        Examples
        --------
        >>> CallIds().context("customer-7", CallContext(call_id="a"), always=True)
        CallContext(session='customer-7', call_id='a')
        """
        if session is not None:
            check.name("session", session, SESSION_BYTES_MAX)
        call_id = given.call_id if given is not None else None
        if call_id is not None:
            check.graphic("call_id", call_id, CALL_ID_CHARS_MAX)
        elif always:
            call_id = f"{self._prefix}-{next(self._numbers)}"
        if given is None:
            return CallContext(session=session, call_id=call_id)
        return CallContext(
            session=session if session is not None else given.session,
            call_id=call_id,
            attempt=given.attempt,
            traceparent=given.traceparent,
            tracestate=given.tracestate,
        )
