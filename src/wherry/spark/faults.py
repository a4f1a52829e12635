"""Turns Flight errors back into the errors that the broker raised, so that a caller sees no difference."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.client.link.errors import KINDS
from wherry.model.errors import Unavailable, WherryError

RAISED = (flight.FlightError, pa.ArrowException, OSError)
"""What pyarrow raises when a call fails."""

_CONTEXT = (". gRPC client debug context", ". Client context:", ". Detail:")
_AWAY = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)


def error_of(fault: BaseException) -> WherryError:
    """Return the error that the broker raised in a failed call, with its fields.

    A fault without an error code did not come from a broker: the connection failed or broke.
    """
    if isinstance(fault, WherryError):
        return fault
    text = str(fault)
    for mark in _CONTEXT:
        text = text.partition(mark)[0]
    fields = _fields(fault)
    code = fields.pop("code", None) or text.partition(":")[0]
    kind = KINDS.get(str(code))
    if kind is None:
        return Unavailable(text) if _is_away(fault, text) else WherryError(text)
    made = kind.__new__(kind)
    made.args = (text.removeprefix(f"{code}: "),)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _fields(fault: BaseException) -> dict[str, object]:
    try:
        found = msgspec.json.decode(getattr(fault, "extra_info", None) or b"{}")
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_away(fault: BaseException, text: str) -> bool:
    """Return whether the connection failed, rather than the call.

    gRPC reports a connection reset as an internal error, as it does for a fault inside the broker; only the broker's
    text contains `internal: `.
    """
    if isinstance(fault, flight.FlightInternalError):
        return "internal: " not in text
    return isinstance(fault, (*_AWAY, OSError)) or "erver disconnect" in text


def passes(fault: WherryError) -> bool:
    """Return whether the same call, unchanged, may succeed a little later."""
    return fault.code in ("unavailable", "closed")
