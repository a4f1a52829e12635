"""Messages as rows: what a wire has read and the broker has not yet made columns of."""

from __future__ import annotations

from typing import Final, NamedTuple

from wherry.model import limits
from wherry.model.schema import Message

ROW_BYTES = 100
"""What a message counts against bounds beside its body and envelope."""


class Handling(NamedTuple):
    """How the broker is to treat messages: on disk or not, how urgent, until when, from when. Unix milliseconds."""

    persistent: bool
    priority: int | None = None
    expires: int | None = None
    due: int | None = None

    def columns(self) -> dict[str, int | None]:
        """Return the columns of a batch that depend on it."""
        return {"priority": self.priority, "expires": self.expires, "due": self.due}


BARE: Final = {True: Handling(persistent=True), False: Handling(persistent=False)}
"""The handling of messages that have no priority and no times, by whether they are persistent."""


class Rows:
    """Messages that differ in nothing but their payloads: one message, or several that arrived together."""

    __slots__ = ("body_bytes", "envelope", "headers", "id", "is_bare", "key", "payloads", "size")

    def __init__(
        self,
        payloads: list[bytes],
        envelope: bytes | None = None,
        key: str | None = None,
        headers: list[tuple[str, str]] | None = None,
        id: str | None = None,  # noqa: A002  the name of the column
    ) -> None:
        self.payloads, self.envelope, self.key, self.headers, self.id = payloads, envelope, key, headers, id
        self.is_bare = envelope is None and key is None and headers is None and id is None
        """Whether they have nothing but their payloads."""
        self.body_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        self.size = self.body_bytes + len(payloads) * (ROW_BYTES + len(envelope or b""))
        """Bytes that all of them count: bodies, envelopes and `ROW_BYTES` each."""

    def part(self, payloads: list[bytes]) -> Rows:
        """Return rows with some of the payloads."""
        return Rows(payloads, self.envelope, self.key, self.headers, self.id)

    def without_id(self) -> Rows:
        """Return the same rows without an id."""
        return Rows(self.payloads, self.envelope, self.key, self.headers)

    def __len__(self) -> int:
        return len(self.payloads)


class Row(NamedTuple):
    """A single message as a row, with its times and its priority."""

    rows: Rows
    priority: int | None
    expires: int | None
    due: int | None

    @property
    def size(self) -> int:
        """Bytes of its payload."""
        return self.rows.body_bytes


def single_row(given: object) -> Row | None:
    """Return what a caller publishes as a row, if it is one plain message without an id; else None.

    A value that is not obviously right is no row: `schema.compact` will name what is wrong with it.
    """
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if type(given) is bytes:
        return Row(Rows([given]), None, None, None)
    if type(given) is not Message or type(given.payload) is not bytes or given.id is not None:
        return None
    numbers = (given.priority, given.expires_ms, given.due_ms)
    if (
        (numbers != (None, None, None) and not _are_numbers(*numbers))
        or (given.key is not None and not _is_text(given.key, limits.KEY_BYTES_MAX))
        or (given.headers is not None and not _are_headers(given.headers))
        or (given.envelope is not None and not _is_envelope(given.envelope))
    ):
        return None
    pairs = None if given.headers is None else list(given.headers.items())
    return Row(Rows([given.payload], given.envelope, given.key, pairs), *numbers)


def are_checked(rows: Rows, handling: Handling) -> bool:
    """Return whether everything beside the payloads is within its limits, so that it may stay a Python value."""
    numbers = handling[1:]
    return (
        rows.id is None
        and (rows.envelope is None or _is_envelope(rows.envelope))
        and (rows.key is None or _is_text(rows.key, limits.KEY_BYTES_MAX))
        and (rows.headers is None or _are_pairs(rows.headers))
        and (numbers == (None, None, None) or _are_numbers(*numbers))
    )


def _are_numbers(priority: object, expires_ms: object, due_ms: object) -> bool:
    bounds = ((priority, limits.PRIORITY_MAX), (expires_ms, limits.TIME_MS_MAX), (due_ms, limits.TIME_MS_MAX))
    return all(value is None or (type(value) is int and 0 <= value <= most) for value, most in bounds)


def _is_envelope(value: object) -> bool:
    return type(value) is bytes and len(value) <= limits.ENVELOPE_BYTES_MAX


def _is_text(value: object, bytes_max: int) -> bool:
    """Return whether a value is text that Arrow can store; a lone surrogate cannot be stored."""
    if type(value) is not str or len(value) > bytes_max:
        return False
    try:
        return value.isascii() or len(value.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def _are_headers(headers: object) -> bool:
    return type(headers) is dict and _are_pairs(list(headers.items()))


def _are_pairs(pairs: list[tuple[str, str]]) -> bool:
    most = limits.HEADERS_BYTES_MAX
    if not len(dict(pairs)) == len(pairs) <= limits.HEADERS_MAX:
        return False
    if not all(_is_text(name, most) and _is_text(value, most) for name, value in pairs):
        return False
    return sum(len(name.encode()) + len(value.encode()) for name, value in pairs) <= most
