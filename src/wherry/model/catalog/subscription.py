"""What a subscription and its consumers declare: where to start, how to lease and retry, how much to buffer."""

from __future__ import annotations

from typing import Literal

import msgspec

from wherry.model import check, limits
from wherry.model.catalog.webhook import Webhook
from wherry.model.errors import InvalidInput

Start = Literal["earliest", "latest", "offset", "time"]
Role = Literal["hub", "leaf"]
ROLES: tuple[Role, ...] = ("hub", "leaf")
"""What a node is in the mesh of `flow` topics: one of the few that all know each other, or one behind a hub."""

STARTS: tuple[Start, ...] = ("earliest", "latest", "offset", "time")

LEASE_MS_MAX = 7 * 24 * 3_600_000
BUFFER_MAX = 1 << 40

ASSIGNMENTS: list[str] = []
"""Names of all assignment strategies. `core.state.assignment` adds them, `register` those of other packages."""


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a failed message is delivered again: the delay grows by `factor` from `first_ms` to `cap_ms`.

    After `attempts` failed deliveries the message becomes a dead letter; `attempts=None` retries for ever. `jitter`
    (0..1) spreads each delay by that share, so that messages that failed together are not retried together.
    """

    attempts: int | None = 16
    first_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 600_000
    jitter: float = 0.1

    def checked(self) -> Retry:
        """Return this policy, or raise `InvalidInput` for the first field that breaks a rule."""
        check.optional_integer("retry.attempts", self.attempts, 1, limits.ATTEMPTS_MAX)
        check.integer("retry.first_ms", self.first_ms, 0, LEASE_MS_MAX)
        check.number("retry.factor", self.factor, 1, 1_000)
        check.integer("retry.cap_ms", self.cap_ms, 0, limits.TIME_MS_MAX)
        check.number("retry.jitter", self.jitter, 0, 1)
        if self.cap_ms < self.first_ms:
            raise InvalidInput("retry.cap_ms", self.cap_ms, f"at least retry.first_ms ({self.first_ms})")
        return self


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription to a topic, with its own progress; several consumers share it.

    Parameters
    ----------
    topic, name
        The topic, and the name among its subscriptions.
    durable
        Whether progress survives restarts and keeps messages in the topic. An ephemeral subscription is in memory
        only, starts at `latest` by default, and is deleted with its last consumer.
    start, start_offset, start_ms
        `earliest`, `latest`, at an offset of every partition, or at the first message published at or after a time.
        None: `earliest` if durable, `latest` if ephemeral.
    acks
        False is at-most-once: a pulled message is settled at once.
    key_order
        With many consumers, never lease a message while an earlier message of its key is leased.
    lease_ms
        How long a consumer may hold messages before they are delivered again.
    retry
        What happens after a nack or an expired lease.
    assignment
        How partitions are given to consumers: `balanced`, `ordered`, `shared`, `exclusive`, or a registered strategy.
    buffer_messages, buffer_bytes
        How far behind this subscription may fall. Beyond that the subscription is cut off; the topic is not affected.
    webhook
        Where a node sends the messages to; None for consumers that pull.
    peer, peer_role
        The node that reads this subscription, and what that node is, if the reader is a peer of the mesh: it gets only
        what this node passes on to it (docs/mesh-flow.md).
    """

    topic: str
    name: str
    durable: bool = True
    start: Start | None = None
    start_offset: int | None = None
    start_ms: int | None = None
    acks: bool = True
    key_order: bool = False
    lease_ms: int = 30_000
    retry: Retry = Retry()
    assignment: str = "balanced"
    buffer_messages: int | None = None
    buffer_bytes: int | None = None
    webhook: Webhook | None = None
    peer: str | None = None
    peer_role: Role = "hub"

    def checked(self) -> Subscription:
        """Return this subscription with its start filled in, or raise `InvalidInput` for the first bad field."""
        check.name("topic", self.topic, limits.TOPIC_NAME_BYTES_MAX)
        check.name("subscription", self.name, limits.SUBSCRIPTION_NAME_CHARS_MAX)
        check.flag("durable", self.durable)
        if self.start is not None:
            check.one_of("start", self.start, STARTS)
        check.optional_integer("start_offset", self.start_offset, 0, limits.OFFSET_MAX)
        check.optional_integer("start_ms", self.start_ms, 0, limits.TIME_MS_MAX)
        check.flag("acks", self.acks)
        check.flag("key_order", self.key_order)
        check.integer("lease_ms", self.lease_ms, 1, LEASE_MS_MAX)
        if not isinstance(self.retry, Retry):
            raise InvalidInput("retry", self.retry, "a Retry policy")
        self.retry.checked()
        check.graphic("assignment", self.assignment, 64)
        check.optional_integer("buffer_messages", self.buffer_messages, 1, BUFFER_MAX)
        check.optional_integer("buffer_bytes", self.buffer_bytes, 1, BUFFER_MAX)
        if self.webhook is not None:
            if not isinstance(self.webhook, Webhook):
                raise InvalidInput("webhook", type(self.webhook).__name__, "a Webhook")
            self.webhook.checked()
        if self.peer is not None:
            check.graphic("peer", self.peer, limits.NODE_NAME_CHARS_MAX)
        check.one_of("peer_role", self.peer_role, ROLES)
        if (self.start == "offset") != (self.start_offset is not None):
            raise InvalidInput("start_offset", self.start_offset, "an offset when start='offset', and only then")
        if (self.start == "time") != (self.start_ms is not None):
            raise InvalidInput("start_ms", self.start_ms, "a time when start='time', and only then")
        if self.key_order and not self.acks:
            raise InvalidInput(
                "key_order", self.key_order, "False when acks=False: without acks no message is ever leased"
            )
        if self.start is None:
            return msgspec.structs.replace(self, start="earliest" if self.durable else "latest")
        return self
