"""The terms of a queue: what a declaration asks for, as a topic and a subscription."""

from __future__ import annotations

import base64
import logging
from functools import lru_cache
from typing import Any

import msgspec

from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.catalog.topic import Overflow, Topic
from wherry.model.limits import PAYLOAD_BYTES_MAX, TIME_MS_MAX
from wherry.queueing.names import LABEL, SUBSCRIPTION, full_name, is_short
from wherry.queueing.refusals import Reason, Refused, refused

_log = logging.getLogger("wherry.queueing")

PRIORITY_STEP = 257
"""Maps the priorities 0..255 of queues, largest first, onto 65535..0, smallest first."""

LEASE_MS = 1_800_000
"""Renewed while the client holds messages, so it ends only if a node did not renew it."""

KINDS = ("classic", "quorum", "stream")
"""Accepted, and all the same: every durable queue is on disk when a publish is confirmed."""

OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")


class QueueTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queue as it was declared. Kept as a label of its topic."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}

    @property
    def max_priority(self) -> int | None:
        """The largest priority that counts; None for a queue without priorities."""
        return self.arguments.get("x-max-priority")

    @property
    def message_ttl_ms(self) -> int | None:
        """How long a message may wait."""
        return self.arguments.get("x-message-ttl")

    @property
    def holds_nothing(self) -> bool:
        """Whether no message may wait in the queue: a consumer that has room takes it right now, or it is dropped."""
        return self.arguments.get("x-max-length") == 0 and self.overflow == "drop-head"

    @property
    def expires_ms(self) -> int | None:
        """How long the queue exists unused."""
        return self.arguments.get("x-expires")

    @property
    def dead_exchange(self) -> str | None:
        """The exchange that its dead letters are published to, if any."""
        return self.arguments.get("x-dead-letter-exchange")

    @property
    def dead_key(self) -> str | None:
        """The routing key of its dead letters; None for that of the message."""
        return self.arguments.get("x-dead-letter-routing-key")

    @property
    def single_active(self) -> bool:
        """Whether one consumer gets all messages, and the others wait until it leaves."""
        return bool(self.arguments.get("x-single-active-consumer"))

    @property
    def overflow(self) -> str:
        """What happens when the queue is full."""
        return str(self.arguments.get("x-overflow", "drop-head"))

    def topic(self, host: str, name: str) -> Topic:
        """Return the topic that is this queue."""
        arguments = self.arguments
        priority = bool(self.max_priority)
        length, size = arguments.get("x-max-length"), arguments.get("x-max-length-bytes")
        if length == 0 and not self.holds_nothing:
            size = 1  # every message is larger, so that none is stored
        return Topic(
            name=full_name(host, name),
            order="priority" if priority else "fifo",
            persistent=self.durable,
            payload_bytes_max=PAYLOAD_BYTES_MAX,
            messages_max=_at_least_one(length),
            bytes_max=_at_least_one(size),
            overflow=self._overflow(),
            expired="drop" if self.dead_exchange is None else "dead-letter",
            counted="waiting",
            labels={LABEL: msgspec.json.encode(self).decode()},
        )

    def _overflow(self) -> Overflow:
        dead = self.dead_exchange is not None
        if self.overflow == "reject-publish-dlx" and dead:
            return "dead-letter"
        if self.overflow != "drop-head":
            return "refuse"
        return "dead-letter-oldest" if dead else "drop-oldest"

    def subscription(self, host: str, name: str) -> Subscription:
        """Return the subscription that its consumers share: released messages come back at once, in their old place."""
        limit = self.arguments.get("x-delivery-limit")
        retry = Retry(attempts=None if limit is None else limit + 1, first_ms=0, factor=1.0, cap_ms=0, jitter=0.0)
        return Subscription(
            topic=full_name(host, name), name=SUBSCRIPTION, assignment="shared", lease_ms=LEASE_MS, retry=retry
        )


def _at_least_one(bound: int | None) -> int | None:
    return None if bound is None else max(1, bound)


def terms_of(topic: Topic) -> QueueTerms:
    """Return how a queue was declared; a topic that was made over another wire is a durable queue."""
    label = topic.labels.get(LABEL)
    declared = None if label is None else _declared(label)
    if declared is not None:
        return declared
    return QueueTerms(durable=topic.persistent, arguments={"x-max-priority": 255} if topic.order == "priority" else {})


@lru_cache(maxsize=4_096)
def _declared(label: str) -> QueueTerms | None:
    """Return the terms in a label; None for other labels, since clients of other wires can write labels too."""
    try:
        terms = msgspec.json.decode(label, type=QueueTerms)
        checked_arguments("", "", terms.arguments)
    except (msgspec.DecodeError, ValueError, RecursionError, Refused):
        _log.warning("ignored a label that is not of a queue", extra={"label": label[:80]})
        return None
    return terms


_WHOLE = {"x-message-ttl": TIME_MS_MAX, "x-expires": TIME_MS_MAX, "x-max-length": 1 << 48}
_WHOLE |= {"x-max-length-bytes": 1 << 48, "x-max-priority": 255, "x-delivery-limit": 65_000}
_TEXT = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow", "x-queue-type", "x-queue-mode")


def checked_arguments(host: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that have a meaning here; raise a refusal for one with a value that is not allowed."""

    def wrong(argument: str, allowed: str) -> Exception:
        text = f"invalid arg '{argument}' for queue '{name}' in vhost '{host}': {given[argument]!r}; allowed: {allowed}"
        return refused(Reason.PRECONDITION_FAILED, text)

    known: dict[str, Any] = {}
    for argument, value in given.items():
        if argument in _WHOLE:
            first = 1 if argument == "x-expires" else 0
            if isinstance(value, bool) or not isinstance(value, int) or not first <= value <= _WHOLE[argument]:
                raise wrong(argument, f"a whole number from {first} to {_WHOLE[argument]}")
            known[argument] = int(value)
        elif argument in _TEXT:
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if not isinstance(text, str) or not is_short(text):
                raise wrong(argument, "text of at most 255 bytes")
            known[argument] = str(text)
        elif argument == "x-single-active-consumer":
            if not isinstance(value, bool):
                raise wrong(argument, "a boolean")
            known[argument] = value
    if known.get("x-overflow", "drop-head") not in OVERFLOWS:
        raise wrong("x-overflow", ", ".join(OVERFLOWS))
    if known.get("x-queue-type", "classic") not in KINDS:
        raise wrong("x-queue-type", ", ".join(KINDS))
    if "x-dead-letter-routing-key" in known and "x-dead-letter-exchange" not in known:
        raise wrong("x-dead-letter-routing-key", "one together with x-dead-letter-exchange")
    return known


def check_type(host: str, name: str, wanted: QueueTerms) -> None:
    """Raise a refusal for a replicated kind of queue that is not durable."""
    kind = wanted.arguments.get("x-queue-type", "classic")
    wrong = "non-durable" if not wanted.durable else "exclusive-owner" if wanted.exclusive else None
    if kind != "classic" and wrong is not None:
        text = f"invalid property '{wrong}' for queue '{name}' in vhost '{host}'"
        raise refused(Reason.PRECONDITION_FAILED, text)


_IMPLIED: dict[str, Any] = {"x-queue-type": "classic"}
"""The arguments of a queue that was declared without them."""


def compared(known: QueueTerms, wanted: QueueTerms) -> list[tuple[str, object, object]]:
    """Return what must be equal when a queue is declared again: name, value and wanted value of each term."""
    fields = ("durable", "exclusive", "auto_delete")
    arguments = {**known.arguments, **wanted.arguments}
    arguments.pop("x-queue-mode", None)  # it has no meaning any more
    return [(field, getattr(known, field), getattr(wanted, field)) for field in fields] + [
        (argument, (_IMPLIED | known.arguments).get(argument), (_IMPLIED | wanted.arguments).get(argument))
        for argument in arguments
    ]


def packed(raw: bytes) -> str:
    """Return bytes as the text of a label."""
    return base64.b64encode(raw).decode("ascii")


def unpacked(label: str) -> bytes:
    """Return the bytes in the text of a label."""
    return base64.b64decode(label)
