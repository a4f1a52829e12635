"""A topic: its order, partitions, bounds, retention. Checked once, when it is created."""

from __future__ import annotations

from typing import Literal

import msgspec

from wherry.model import check, limits
from wherry.model.errors import InvalidInput

Order = Literal["fifo", "priority", "timeline"]
Overflow = Literal["refuse", "dead-letter", "drop-oldest", "dead-letter-oldest"]
Keep = Literal["settled", "age", "bytes"]
Mesh = Literal["safe", "flow"]

ORDERS: tuple[Order, ...] = ("fifo", "priority", "timeline")
OVERFLOWS: tuple[Overflow, ...] = ("refuse", "dead-letter", "drop-oldest", "dead-letter-oldest")
KEEPS: tuple[Keep, ...] = ("settled", "age", "bytes")
MESHES: tuple[Mesh, ...] = ("safe", "flow")

COUNT_MAX = 1 << 48


class Topic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named set of partitions with one order.

    Parameters
    ----------
    name
        1 to 1,024 bytes.
    order
        `fifo`; `priority` (0..65535, smallest first, fifo within equal); `timeline` (due time, never early).
    partitions
        1 to 65,535, the unit of order.
    persistent
        Whether messages are journaled if a publish does not choose; False keeps them in memory only.
    payload_bytes_max
        Largest body: 65,535 bytes by default, up to 24 MiB.
    messages_max, bytes_max
        Bounds on the messages in the topic; None for no bound.
    overflow
        What happens to a message that does not fit: `refuse` the call, or `dead-letter` the message. Or the oldest
        message makes room for it: `drop-oldest`, `dead-letter-oldest`.
    dead_messages_max
        Bound on dead letters. When it is reached, a message that does not fit is refused, and one that failed too
        often is retried further.
    keep
        `settled`: a message is removed when every durable subscription has settled it (a queue). `age` and `bytes`: it
        is removed by `keep_ms` or `keep_bytes` (of each partition), settled or not (a stream).
    expired
        What happens to a message that expires unread: `drop` it or `dead-letter` it.
    counted
        What counts against the bounds: `all` messages that are not settled, or only those `waiting`, which no consumer
        holds.
    labels
        Notes of the client that made it; stored and not read.
    mesh
        How the topic spans nodes. `safe`: its messages are on this node alone. `flow`: every node that has the topic
        takes publishes at any time, and passes them on to the others (docs/mesh-flow.md). Only a fifo can flow.
    """

    name: str
    order: Order = "fifo"
    partitions: int = 1
    persistent: bool = True
    payload_bytes_max: int = limits.PAYLOAD_BYTES_DEFAULT
    messages_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = "refuse"
    dead_messages_max: int = 1_000_000
    keep: Keep = "settled"
    keep_ms: int | None = None
    keep_bytes: int | None = None
    expired: Literal["drop", "dead-letter"] = "drop"
    labels: dict[str, str] = {}
    counted: Literal["all", "waiting"] = "all"
    mesh: Mesh = "safe"

    @property
    def flows(self) -> bool:
        """Whether its messages are passed on to other nodes."""
        return self.mesh == "flow"

    @property
    def is_bounded(self) -> bool:
        """Whether the number or the bytes of its messages have a bound."""
        return self.messages_max is not None or self.bytes_max is not None

    def checked(self) -> Topic:
        """Return this topic, or raise `InvalidInput` for the first field that breaks a rule."""
        self.check_fields()
        if (self.keep == "age") != (self.keep_ms is not None):
            raise InvalidInput("keep_ms", self.keep_ms, "a time when keep='age', and only then")
        if (self.keep == "bytes") != (self.keep_bytes is not None):
            raise InvalidInput("keep_bytes", self.keep_bytes, "a size when keep='bytes', and only then")
        if self.flows:
            self._check_flow()
        return self

    def _check_flow(self) -> None:
        """Raise `InvalidInput` for what would let a peer get messages in another order than that of their offsets.

        A peer takes a message with a lower offset for one that it has: so no message may come back, or wait for its
        turn, behind a later one.
        """
        if self.order != "fifo":
            raise InvalidInput("order", self.order, "fifo when mesh='flow'")
        if self.partitions > limits.FLOW_PARTITIONS_MAX:
            allowed = f"at most {limits.FLOW_PARTITIONS_MAX} when mesh='flow'"
            raise InvalidInput("partitions", self.partitions, allowed)
        if self.overflow not in ("refuse", "drop-oldest"):
            raise InvalidInput("overflow", self.overflow, "refuse or drop-oldest when mesh='flow'")
        if self.expired != "drop":
            raise InvalidInput("expired", self.expired, "drop when mesh='flow'")

    def check_fields(self) -> None:
        """Check each field by itself: for a change of a topic only some of them are given."""
        check.name("topic", self.name, limits.TOPIC_NAME_BYTES_MAX)
        check.one_of("order", self.order, ORDERS)
        check.integer("partitions", self.partitions, 1, limits.PARTITIONS_MAX)
        check.flag("persistent", self.persistent)
        check.integer("payload_bytes_max", self.payload_bytes_max, 1, limits.PAYLOAD_BYTES_MAX)
        check.optional_integer("messages_max", self.messages_max, 1, COUNT_MAX)
        check.optional_integer("bytes_max", self.bytes_max, 1, COUNT_MAX)
        check.one_of("overflow", self.overflow, OVERFLOWS)
        check.integer("dead_messages_max", self.dead_messages_max, 0, COUNT_MAX)
        check.one_of("keep", self.keep, KEEPS)
        check.optional_integer("keep_ms", self.keep_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("keep_bytes", self.keep_bytes, 0, COUNT_MAX)
        check.one_of("expired", self.expired, ("drop", "dead-letter"))
        check.labels("labels", self.labels)
        check.one_of("counted", self.counted, ("all", "waiting"))
        check.one_of("mesh", self.mesh, MESHES)
