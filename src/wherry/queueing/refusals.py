"""Refusals: a reason and a text. Each wire turns them into its own error."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from wherry.model.errors import (
    AlreadyExists,
    Closed,
    DiskFull,
    Forbidden,
    InvalidInput,
    LimitReached,
    NotFound,
    TooLarge,
    Unauthorized,
    WherryError,
)


class Reason(Enum):
    """Why something is refused; clients of queues know these words."""

    ACCESS_REFUSED = "access_refused"
    NOT_FOUND = "not_found"
    RESOURCE_LOCKED = "resource_locked"
    PRECONDITION_FAILED = "precondition_failed"
    COMMAND_INVALID = "command_invalid"
    NOT_ALLOWED = "not_allowed"
    NOT_IMPLEMENTED = "not_implemented"
    RESOURCE_ERROR = "resource_error"
    CONNECTION_FORCED = "connection_forced"
    INTERNAL_ERROR = "internal_error"


class Refused(Exception):
    """A call that is refused. `hard` ends the connection; None leaves that to the reason."""

    def __init__(self, reason: Reason, detail: str, *, hard: bool | None = None) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason, self.detail, self.hard = reason, detail, hard


def refused(reason: Reason, detail: str, *, hard: bool | None = None) -> Refused:
    """Return an error to raise."""
    return Refused(reason, detail, hard=hard)


def no_queue(host: str, name: str) -> Refused:
    """Return the error for a queue that does not exist."""
    return Refused(Reason.NOT_FOUND, f"no queue '{name}' in vhost '{host}'")


def no_exchange(host: str, name: str) -> Refused:
    """Return the error for an exchange that does not exist."""
    return Refused(Reason.NOT_FOUND, f"no exchange '{name}' in vhost '{host}'")


def on_default_exchange() -> Refused:
    """Return the error for a change of the default exchange."""
    return Refused(Reason.ACCESS_REFUSED, "operation not permitted on the default exchange")


def locked(host: str, name: str) -> Refused:
    """Return the error for a queue that is exclusive to another connection, or is not exclusive as declared."""
    text = (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{host}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )
    return Refused(Reason.RESOURCE_LOCKED, text)


def check_equal(what: str, host: str, name: str, terms: Iterable[tuple[str, object, object]]) -> None:
    """Raise a refusal if a queue or an exchange is declared again with other terms.

    `terms` are the name of each term, its value and the value that was asked for; None for no value.
    """
    for term, known, wanted in terms:
        if known != wanted:
            received, current = _shown(wanted), _shown(known)
            text = f"inequivalent arg '{term}' for {what} '{name}' in vhost '{host}': "
            raise Refused(Reason.PRECONDITION_FAILED, f"{text}received {received} but current is {current}")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


_REASONS: tuple[tuple[type[WherryError], Reason], ...] = (
    (Unauthorized, Reason.ACCESS_REFUSED),
    (Forbidden, Reason.ACCESS_REFUSED),
    (NotFound, Reason.NOT_FOUND),
    (AlreadyExists, Reason.PRECONDITION_FAILED),
    (InvalidInput, Reason.PRECONDITION_FAILED),
    (TooLarge, Reason.PRECONDITION_FAILED),
    (LimitReached, Reason.RESOURCE_ERROR),
    (DiskFull, Reason.RESOURCE_ERROR),
    (Closed, Reason.CONNECTION_FORCED),
)


def of_broker(fault: WherryError) -> Refused:
    """Return the refusal for an error of the broker, with the reason that clients of queues know."""
    reason = next((reason for kind, reason in _REASONS if isinstance(fault, kind)), Reason.INTERNAL_ERROR)
    return Refused(reason, str(fault))
