"""Errors of Flight back into the errors that the broker raised, so that a caller sees no difference."""

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
    """The error that a failed call tells of, with the fields that came along.

    Without a code nothing of Wherry answered: the connection failed or broke.
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
    """Whether the connection is what failed. gRPC calls it internal when one is reset; so does a broker's own fault."""
    if isinstance(fault, flight.FlightInternalError):
        return "internal: " not in text
    return isinstance(fault, (*_AWAY, OSError)) or "erver disconnect" in text


def passes(fault: WherryError) -> bool:
    """Whether the same call may succeed a little later, unchanged."""
    return fault.code in ("unavailable", "closed")
