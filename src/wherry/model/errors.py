"""Every error a caller can meet, one class per thing the caller would do differently.

Each carries a stable `code` for wires, and says what was given and what would have been right.
"""

from __future__ import annotations

from typing import ClassVar

from wherry.model.limits import ERROR_CHARS_MAX


class WherryError(Exception):
    """Anything Wherry raises on purpose."""

    code: ClassVar[str] = "error"


class InvalidInput(WherryError, ValueError):
    """A value that breaks a stated rule: names the field, what was given, and what is allowed."""

    code = "invalid-input"

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field, self.given, self.allowed = field, given, allowed
        shown = repr(given)
        if len(shown) > 120:
            shown = f"{shown[:80]}… ({len(shown)} characters)"
        super().__init__(f"{field}: got {shown}; allowed: {allowed}")


class NotFound(WherryError, LookupError):
    """A topic, subscription, route, message or stage that does not exist."""

    code = "not-found"

    def __init__(self, kind: str, name: object) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"no {kind} named {name!r}")


class Unauthorized(WherryError):
    """Nobody knows who asks: no key, one that is not known, or one that expired."""

    code = "unauthorized"
    pause_s = 0.0
    """How long to wait before that is told: whoever guesses passwords gets few answers."""


class Forbidden(WherryError):
    """The key is good, and has no right to this."""

    code = "forbidden"

    def __init__(self, name: str, verb: str, topic: str) -> None:
        self.name, self.verb, self.topic = name, verb, topic
        what = "all topics ('*')" if topic == "*" else f"topic {topic!r}"
        super().__init__(f"the key of {name!r} lacks the right to {verb} on {what}")


class AlreadyExists(WherryError):
    """A name that is taken by something of another shape."""

    code = "already-exists"

    def __init__(self, kind: str, name: object, difference: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"{kind} {name!r} already exists and differs: {difference}")


class LimitReached(WherryError):
    """A stated bound is full and its policy is to refuse: nothing of the call was stored."""

    code = "limit-reached"

    def __init__(self, bound: str, limit: int, asked: int) -> None:
        self.bound, self.limit, self.asked = bound, limit, asked
        super().__init__(f"{bound} is full: the limit is {limit}, this call would make it {asked}")


class TooLarge(WherryError):
    """One call is larger than a single journal entry may be; split it and send it again."""

    code = "too-large"

    def __init__(self, what: str, given_bytes: int, bytes_max: int) -> None:
        self.given_bytes, self.bytes_max = given_bytes, bytes_max
        super().__init__(f"{what} has {given_bytes} bytes; at most {bytes_max} are allowed in one call: split it")


class StaleLease(WherryError):
    """The fence: this lease no longer holds these messages, so nothing was settled for them."""

    code = "stale-lease"

    def __init__(self, token: int, why: str) -> None:
        self.token = token
        super().__init__(f"lease {token} {why}; nothing was settled")


class VersionConflict(WherryError):
    """Somebody changed the message since it was read, so this edit is refused."""

    code = "version-conflict"

    def __init__(self, message_id: str, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"message {message_id!r} is at version {actual}, the edit was made for version {expected}")


class NotWaiting(WherryError):
    """The message was delivered, settled or removed first: cancel and deliver exclude each other."""

    code = "not-waiting"

    def __init__(self, message_id: str, state: str) -> None:
        self.state = state
        super().__init__(f"message {message_id!r} can no longer be changed: it is {state}")


class HistoryLost(WherryError):
    """Messages that a reader of the log was still to read are gone."""

    code = "history-lost"

    def __init__(self, topic: str, partition: int, offset: int, first: int) -> None:
        self.topic, self.partition, self.offset, self.first = topic, partition, offset, first
        super().__init__(
            f"topic {topic!r} partition {partition}: offset {offset} is gone, by retention or because it was settled;"
            f" what there is begins at {first}"
        )


class DuplicateId(WherryError):
    """A message id that a message in the topic already has; nothing of the call was stored."""

    code = "duplicate-id"

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        super().__init__(f"ids already in the topic: {', '.join(map(repr, ids[:3]))}{more}; nothing was stored")


class OutOfSequence(WherryError):
    """A producer sequence that overlaps earlier ones or is too old to be answered from memory."""

    code = "out-of-sequence"

    def __init__(self, producer: str, given: int, why: str) -> None:
        self.producer, self.given, self.why = producer, given, why
        super().__init__(f"producer {producer!r}: sequence {given} {why}")


class CutOff(WherryError):
    """The consumer or subscription went over the buffer it declared, and was removed."""

    code = "cut-off"

    def __init__(self, who: str, why: str) -> None:
        self.who, self.why = who, why
        super().__init__(f"{who} was cut off: {why}")


class StageLost(WherryError):
    """A stage that cannot be committed any more: it expired, or held leases that a restart ended."""

    code = "stage-lost"

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        super().__init__(f"stage {key!r} cannot be committed: {why}; nothing of it is visible")


class Closed(WherryError):
    """The broker is closed, or closed while the call waited."""

    code = "closed"


class Unavailable(WherryError):
    """No answer: the broker cannot be reached, is too busy, or went away. The call may have been carried out."""

    code = "unavailable"


class StorageError(WherryError):
    """The base of everything the disk can do to us."""

    code = "storage"


class DiskFull(StorageError):
    """No room for new messages; pulls and settles go on from the space kept back for them."""

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
    """Bytes on disk are not what was written there: names the file and the place."""

    code = "corrupt"

    def __init__(self, path: str, at: int, why: str) -> None:
        self.path, self.at = path, at
        super().__init__(f"{path} at byte {at}: {why}")


class InUse(StorageError):
    """Another process has this directory open."""

    code = "in-use"


class Fenced(StorageError):
    """Another owner has opened this shard since; what was in flight here is not stored."""

    code = "fenced"


NOT_MESSAGE_FAULTS = (StaleLease, CutOff, Closed, Unavailable, StorageError)
"""About the broker and the way to it: whoever is stopped by one of these has not failed with a message."""


def may_be_message_fault(fault: BaseException | None) -> bool:
    """Tell whether a message may be what ended the work on it: any exception of the worker, but none of the above."""
    if isinstance(fault, ExceptionGroup):
        return any(may_be_message_fault(each) for each in fault.exceptions)
    return isinstance(fault, Exception) and not isinstance(fault, NOT_MESSAGE_FAULTS)


def error_text(fault: BaseException) -> str:
    """Put an exception into the text that is kept with a failed delivery: its class and its words.

    Of a group, each exception in it: the group's own words say only how many there are.
    """
    if isinstance(fault, BaseExceptionGroup):
        text = "; ".join(error_text(each) for each in fault.exceptions)
    else:
        try:
            words = str(fault)
        except Exception:  # the class is another's, and so is its mistake
            words = "(its text cannot be had)"
        text = f"{type(fault).__name__}: {words}" if words else type(fault).__name__
    return text.encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]
