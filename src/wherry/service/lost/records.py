"""Records of calls that had no result, as the caller and as the provider know them, and how one is sent again. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wherry.service import values
from wherry.service.calling.attempt import CallAttempt
from wherry.service.calling.caller import TIMEOUT_S, TIMEOUT_S_MAX
from wherry.service.lost.lost_call import LostCall
from wherry.service.outcomes import CallError, CallOutcome, RefusalCode, Refused
from wherry.service.providing.running import ProvidedCall
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.invokes import CallContext

KEPT_OF_CALLER: Final = frozenset({CallOutcome.REFUSED, CallOutcome.TIMED_OUT, CallOutcome.LOST})
"""A call that failed in its method is kept by the provider: the caller has its answer, the error."""

KEPT_OF_PROVIDER: Final = frozenset({CallOutcome.FAILED, CallOutcome.TIMED_OUT, CallOutcome.LOST})
"""A call that its caller cancelled is not lost, and of one that was refused the caller knows."""

TIMEOUT: Final = "timeout-s"


def of_caller(call: CallAttempt, fault: CallError, at_ms: int) -> LostCall | None:
    """Return the record of a call at its caller; None if it is not kept there."""
    if fault.outcome not in KEPT_OF_CALLER:
        return None
    context = call.context or CallContext()
    # One that is wrong in itself stays wrong.
    may_succeed = not (isinstance(fault, Refused) and fault.reason is RefusalCode.INVALID_INPUT)
    return LostCall(
        id=context.call_id or "",
        at_ms=at_ms,
        side="caller",
        service=call.target.service,
        method=call.target.name.partition(".")[2],
        instance=fault.instance,
        session=context.session,
        outcome=fault.outcome.value,
        error=fault.reason.value if isinstance(fault, Refused) else type(fault).__name__,
        text=str(fault),
        body=call.argument,
        content=_content(call.flags),
        resend=bool(call.resend) and may_succeed,
        labels=_labels(context) | {TIMEOUT: f"{call.timeout_s:g}"},
    )


def of_provider(call: ProvidedCall, outcome: CallOutcome, call_id: str, instance: str, at_ms: int) -> LostCall | None:
    """Return the record of a call at its provider; None if it is not kept there. `call_id` is for one without an id."""
    if outcome not in KEPT_OF_PROVIDER:
        return None
    context = call.context()
    service, _, method = call.name.partition(".")
    trouble = call.trouble
    return LostCall(
        id=context.call_id or call_id,
        at_ms=at_ms,
        side="provider",
        service=service,
        method=method,
        instance=instance,
        session=context.session,
        outcome=outcome.value,
        error=trouble.kind if trouble is not None else "",
        text=trouble.text if trouble is not None else _why(call, outcome),
        body=call.asked.argument,
        content=_content(call.flags),
        labels=_labels(context) | ({"caller": call.caller} if call.caller else {}),
    )


def _why(call: ProvidedCall, outcome: CallOutcome) -> str:
    if outcome is CallOutcome.TIMED_OUT:
        return "the deadline passed before the method returned"
    if call.outcome is CallOutcome.ANSWERED:
        return "the caller disconnected before it reported that it has read the result"
    return "the caller disconnected before the method returned"


def _labels(context: CallContext) -> dict[str, str]:
    found = {"traceparent": context.traceparent, "tracestate": context.tracestate}
    return {name: value for name, value in found.items() if value}


def _content(flags: int) -> str:
    return "msgpack" if flags & Flag.MSGPACK else "json" if flags & Flag.JSON else "bytes"


def argument_of(call: LostCall) -> Any:
    """Return the argument of a kept call, to call with it again."""
    if call.content == "msgpack":
        return msgspec.Raw(call.body)
    return values.decode_plain(call.body, Flag.JSON) if call.content == "json" else call.body


def context_of(call: LostCall) -> CallContext:
    """Return the context of a kept call: the id that it had, and one more attempt."""
    trace = call.labels
    return CallContext(
        call_id=call.id,
        attempt=call.attempts,
        traceparent=trace.get("traceparent"),
        tracestate=trace.get("tracestate"),
    )


def timeout_s_of(call: LostCall) -> float:
    """Return how long a kept call may take."""
    try:
        found = float(call.labels.get(TIMEOUT, TIMEOUT_S))
    except ValueError:
        return TIMEOUT_S
    return found if 0 < found <= TIMEOUT_S_MAX else TIMEOUT_S
