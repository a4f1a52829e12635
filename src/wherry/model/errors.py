"""Every error that a caller can get, one class for each thing that the caller would do differently.

Each class has a stable `code` for the wires. The text names what was given and what is allowed.
"""

from __future__ import annotations

from typing import ClassVar

from wherry.model.limits import ERROR_CHARS_MAX


class WherryError(Exception):
    """Base of all errors that Wherry raises on purpose."""

    code: ClassVar[str] = "error"


class InvalidInput(WherryError, ValueError):
    """A value breaks a stated rule. Names the field, what was given, and what is allowed."""

    code = "invalid-input"

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field, self.given, self.allowed = field, given, allowed
        shown = repr(given)
        if len(shown) > 120:
            shown = f"{shown[:80]}… ({len(shown)} characters)"
        super().__init__(f"{field}: got {shown}; allowed: {allowed}")


class NotFound(WherryError, LookupError):
    """A topic, subscription, route, message or stage does not exist."""

    code = "not-found"

    def __init__(self, kind: str, name: object) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"no {kind} named {name!r}")


class Unauthorized(WherryError):
    """The client is not identified: it gave no key, an unknown key, or an expired one."""

    code = "unauthorized"
    pause_s = 0.0
    """How long a wire waits before it sends this error, so that guessing passwords is slow."""


class Forbidden(WherryError):
    """The key is valid, but has no right to this call."""

    code = "forbidden"

    def __init__(self, name: str, verb: str, topic: str) -> None:
        self.name, self.verb, self.topic = name, verb, topic
        what = "all topics ('*')" if topic == "*" else f"topic {topic!r}"
        super().__init__(f"the key of {name!r} lacks the right to {verb} on {what}")


class AlreadyExists(WherryError):
    """The name is already used for something with another configuration."""

    code = "already-exists"

    def __init__(self, kind: str, name: object, difference: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"{kind} {name!r} already exists and differs: {difference}")


class LimitReached(WherryError):
    """A stated bound is reached and its policy is to refuse: nothing of the call was stored."""

    code = "limit-reached"

    def __init__(self, bound: str, limit: int, asked: int) -> None:
        self.bound, self.limit, self.asked = bound, limit, asked
        super().__init__(f"{bound} is full: the limit is {limit}, this call would make it {asked}")


class TooLarge(WherryError):
    """One call is larger than a journal entry may be: split it and send it again."""

    code = "too-large"

    def __init__(self, what: str, given_bytes: int, bytes_max: int) -> None:
        self.given_bytes, self.bytes_max = given_bytes, bytes_max
        super().__init__(f"{what} has {given_bytes} bytes; at most {bytes_max} are allowed in one call: split it")


class StaleLease(WherryError):
    """The lease no longer holds these messages, so nothing was settled for them. This is the fence."""

    code = "stale-lease"

    def __init__(self, token: int, why: str) -> None:
        self.token = token
        super().__init__(f"lease {token} {why}; nothing was settled")


class VersionConflict(WherryError):
    """The message was changed since the caller read it, so this amend is refused."""

    code = "version-conflict"

    def __init__(self, message_id: str, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"message {message_id!r} is at version {actual}, the amend was made for version {expected}")


class NotWaiting(WherryError):
    """The message was delivered, settled or removed first: a cancel and a delivery exclude each other."""

    code = "not-waiting"

    def __init__(self, message_id: str, state: str) -> None:
        self.state = state
        super().__init__(f"message {message_id!r} can no longer be changed: it is {state}")


class HistoryLost(WherryError):
    """Messages that a log reader was still to read are gone."""

    code = "history-lost"

    def __init__(self, topic: str, partition: int, offset: int, first: int) -> None:
        self.topic, self.partition, self.offset, self.first = topic, partition, offset, first
        super().__init__(
            f"topic {topic!r} partition {partition}: offset {offset} is gone, by retention or because it was settled;"
            f" the first offset still there is {first}"
        )


class DuplicateId(WherryError):
    """A message in the topic already has this id; nothing of the call was stored."""

    code = "duplicate-id"

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        super().__init__(f"ids already in the topic: {', '.join(map(repr, ids[:3]))}{more}; nothing was stored")


class OutOfSequence(WherryError):
    """The sequence numbers of a producer overlap earlier ones, or are too old to be recognised as a repeat."""

    code = "out-of-sequence"

    def __init__(self, producer: str, given: int, why: str) -> None:
        self.producer, self.given, self.why = producer, given, why
        super().__init__(f"producer {producer!r}: sequence {given} {why}")


class CutOff(WherryError):
    """The consumer or subscription exceeded the buffer that it declared, and was removed."""

    code = "cut-off"

    def __init__(self, who: str, why: str) -> None:
        self.who, self.why = who, why
        super().__init__(f"{who} was cut off: {why}")


class StageLost(WherryError):
    """The stage cannot be committed any more: it expired, or it had leases that a restart ended."""

    code = "stage-lost"

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        super().__init__(f"stage {key!r} cannot be committed: {why}; nothing of it is visible")


class Closed(WherryError):
    """The broker is closed, or was closed while the call waited."""

    code = "closed"


class Unavailable(WherryError):
    """No answer: the broker cannot be reached, is too busy, or closed the connection.

    The call may have been carried out.
    """

    code = "unavailable"


class StorageError(WherryError):
    """Base of all errors of the disk."""

    code = "storage"


class DiskFull(StorageError):
    """No space for new messages. Pulls and settles continue in the space reserved for them."""

    code = "disk-full"

    def __init__(self, wanted_bytes: int, free_bytes: int) -> None:
        self.wanted_bytes, self.free_bytes = wanted_bytes, free_bytes
        super().__init__(
            f"the disk is full: {wanted_bytes} bytes wanted, {free_bytes} left for new messages; nothing was stored. "
            "Consuming goes on; publishing resumes when space returns"
        )


class WriterFailed(StorageError):
    """A write or sync failed. The kernel may have dropped the pages, so this writer never writes again."""

    code = "writer-failed"


class Corrupt(StorageError):
    """Bytes on disk are not what was written there. Names the file and the byte."""

    code = "corrupt"

    def __init__(self, path: str, at: int, why: str) -> None:
        self.path, self.at = path, at
        super().__init__(f"{path} at byte {at}: {why}")


class InUse(StorageError):
    """Another process has this directory open."""

    code = "in-use"


class Fenced(StorageError):
    """Another owner has opened this shard since; entries that were still being written here are not stored."""

    code = "fenced"


NOT_MESSAGE_FAULTS = (StaleLease, CutOff, Closed, Unavailable, StorageError)
"""Errors of the broker or of the connection: a consumer that gets one of these has not failed with a message."""


def may_be_message_fault(fault: BaseException | None) -> bool:
    """Return whether a message may have caused an exception: any exception of the consumer's own code."""
    if isinstance(fault, ExceptionGroup):
        return any(may_be_message_fault(each) for each in fault.exceptions)
    return isinstance(fault, Exception) and not isinstance(fault, NOT_MESSAGE_FAULTS)


def error_text(fault: BaseException, chars_max: int = ERROR_CHARS_MAX) -> str:
    """Return the text that is stored with a failed delivery: the class of the exception and its message.

    Of an exception group, returns the text of each member: the group's own text has only their number.
    """
    if isinstance(fault, BaseExceptionGroup):
        text = "; ".join(error_text(each, chars_max) for each in fault.exceptions)
    else:
        try:
            words = str(fault)
        except Exception:  # a foreign class may fail in `__str__`
            words = "(its text is not available)"
        text = f"{type(fault).__name__}: {words}" if words else type(fault).__name__
    return text.encode("utf-8", "replace").decode()[:chars_max]
