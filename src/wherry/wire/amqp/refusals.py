"""What is refused to a client: a reply code and a text. The session knows the channel and the method, and closes it."""

from __future__ import annotations

from collections.abc import Iterable

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
from wherry.wire.amqp.codec.faults import Reply


class Refused(Exception):
    """A method that is not carried out. `hard` ends the connection, else the code says what ends."""

    def __init__(self, code: Reply, detail: str, *, hard: bool | None = None) -> None:
        super().__init__(f"{int(code)} {detail}")
        self.code, self.detail, self.hard = code, detail, hard


def refused(code: Reply, detail: str, *, hard: bool | None = None) -> Refused:
    """To be raised."""
    return Refused(code, detail, hard=hard)


def no_queue(host: str, name: str) -> Refused:
    """There is no such queue."""
    return Refused(Reply.NOT_FOUND, f"no queue '{name}' in vhost '{host}'")


def no_exchange(host: str, name: str) -> Refused:
    """There is no such exchange."""
    return Refused(Reply.NOT_FOUND, f"no exchange '{name}' in vhost '{host}'")


def on_default_exchange() -> Refused:
    """The exchange without a name is as it is."""
    return Refused(Reply.ACCESS_REFUSED, "operation not permitted on the default exchange")


def locked(host: str, name: str) -> Refused:
    """A queue is exclusive, and not to whoever asks, or not as it asks for it."""
    text = (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{host}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )
    return Refused(Reply.RESOURCE_LOCKED, text)


def check_equal(what: str, host: str, name: str, terms: Iterable[tuple[str, object, object]]) -> None:
    """A channel error if a queue or an exchange is declared again as something else.

    `terms` are the name of each term, what it is and what was asked for; None where there is none.
    """
    for term, known, wanted in terms:
        if known != wanted:
            received, current = _shown(wanted), _shown(known)
            text = f"inequivalent arg '{term}' for {what} '{name}' in vhost '{host}': "
            raise Refused(Reply.PRECONDITION_FAILED, f"{text}received {received} but current is {current}")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


_CODES: tuple[tuple[type[WherryError], Reply], ...] = (
    (Unauthorized, Reply.ACCESS_REFUSED),
    (Forbidden, Reply.ACCESS_REFUSED),
    (NotFound, Reply.NOT_FOUND),
    (AlreadyExists, Reply.PRECONDITION_FAILED),
    (InvalidInput, Reply.PRECONDITION_FAILED),
    (TooLarge, Reply.PRECONDITION_FAILED),
    (LimitReached, Reply.RESOURCE_ERROR),
    (DiskFull, Reply.RESOURCE_ERROR),
    (Closed, Reply.CONNECTION_FORCED),
)


def of_broker(fault: WherryError) -> Refused:
    """What the broker refused, in the words of the protocol."""
    code = next((code for kind, code in _CODES if isinstance(fault, kind)), Reply.INTERNAL_ERROR)
    return Refused(code, str(fault))
