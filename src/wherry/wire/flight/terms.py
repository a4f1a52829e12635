"""The requests of clients as JSON: commands, tickets and bodies of actions. An unknown field is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.model.calls.lease import PULL_BYTES_DEFAULT, PULL_MESSAGES_MAX
from wherry.model.calls.log import (
    BUDGET_MAX,
    WAIT_MS_MAX,
    check_columns,
    projection,
)
from wherry.model.calls.where import Where
from wherry.model.catalog.subscription import BUFFER_MAX
from wherry.model.errors import InvalidInput
from wherry.security.access import own_key, signed
from wherry.wire.flight import tables

Count = Annotated[int, msgspec.Meta(ge=1, le=BUDGET_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
Offsets = dict[int, Offset]
"""Offsets by partition."""

T = TypeVar("T")


class Term(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One JSON object."""


class OffsetsOrTime(Term, frozen=True):
    """A place in a topic: offsets of some partitions, or a time."""

    offsets: Offsets | None = None
    time_ms: Offset | None = None


End = Literal["earliest", "latest"]
Table = Literal["dead", "subscriptions", "topics"]


class OfLog(Term, frozen=True):
    """What to read of a topic, or of a table, which takes only a topic beside it."""

    topic: str | None = None
    table: Table | None = None
    columns: list[str] | None = None
    where: Where = Where()
    strict: bool = False

    def names(self) -> list[str]:
        """Return the columns that are wanted."""
        return check_columns(self.columns)

    def named(self) -> str:
        """Return the topic, which must be given."""
        if self.topic is None:
            raise InvalidInput("topic", None, "the name of a topic, or a table")
        return self.topic

    def schema(self) -> pa.Schema:
        """Return the schema of the answer."""
        if self.table is None:
            return projection(self.names())
        for field in msgspec.structs.fields(self):
            if field.name not in ("topic", "table") and getattr(self, field.name) != field.default:
                raise InvalidInput(field.name, getattr(self, field.name), "nothing but a topic beside a table")
        return tables.schema(self.table)


class Query(OfLog, frozen=True):
    """A query: what to read of a topic, or a table."""

    start: OffsetsOrTime | End = "earliest"
    stop: OffsetsOrTime | End = "latest"
    rows_per_endpoint: Count | None = None


class Ticket(OfLog, frozen=True):
    """One part of the answer to a query."""

    partition: Annotated[int, msgspec.Meta(ge=0, le=65_534)] = 0
    start: Offset = 0
    stop: Offset | None = None

    def part(self) -> PartitionRead:
        """Return what to read of a log; `InvalidInput` where the ticket names no range, or one that cannot be."""
        if self.stop is None or self.start > self.stop:
            raise InvalidInput("stop", self.stop, "an offset, from `start` on")
        return PartitionRead(
            self.named(), self.partition, self.start, self.stop, self.names(), self.where.checked(), self.strict
        )


class PartitionRead(NamedTuple):
    """A range of a partition, and which columns and rows to read of it."""

    topic: str
    partition: int
    start: int
    stop: int
    columns: list[str]
    where: Where
    strict: bool


class Put(Term, frozen=True):
    """Where written batches are published or staged."""

    topic: str
    producer: str | None = None
    sequence: Offset | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=65_534)] | None = None
    stage: str | None = None


class Push(Term, frozen=True):
    """A subscription to be pushed as a stream."""

    topic: str
    subscription: str
    consumer: str | None = None
    messages: Annotated[int, msgspec.Meta(ge=1, le=PULL_MESSAGES_MAX)] = 8_192
    bytes: Annotated[int, msgspec.Meta(ge=1, le=BUFFER_MAX)] = PULL_BYTES_DEFAULT


class Wish(Term, frozen=True):
    """A message of the client of a pushed stream: credit, or what to settle; exactly one of them."""

    credit: Annotated[int, msgspec.Meta(ge=1, le=BUFFER_MAX)] | None = None
    ack: list[str] | None = None
    nack: list[str] | None = None
    dead_letter: list[str] | None = None
    renew: list[str] | None = None
    id: int | str | None = None
    delay_ms: int | None = None
    lease_ms: int | None = None
    reason: str = "rejected"
    error: str = ""


class Nothing(Term, frozen=True):
    """A body without fields."""


class OfTopic(Term, frozen=True):
    """A topic."""

    topic: str


class OfSubscription(Term, frozen=True):
    """A subscription."""

    topic: str
    name: str


class RangeTerms(Term, frozen=True):
    """A range of a log, as in a ticket."""

    topic: str
    stop: Offset
    partition: Annotated[int, msgspec.Meta(ge=0, le=65_534)] = 0
    start: Offset = 0
    strict: bool = False


class AtTime(Term, frozen=True):
    """A time in a topic."""

    topic: str
    time_ms: Offset


class Reach(Term, frozen=True):
    """From where, and how far at most, to read."""

    start: dict[str, Offsets]
    stop: dict[str, Offsets] | None = None
    messages_max: Count = BUDGET_MAX
    bytes_max: Count = BUDGET_MAX
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 0


class Advance(Term, frozen=True):
    """How far a reader has read."""

    topic: str
    subscription: str
    offsets: Offsets


class OfStage(Term, frozen=True):
    """A stage, or a commit."""

    key: str

    def owned(self, caller: str) -> Self:
        """Return the same with the keys of this caller."""
        return msgspec.structs.replace(self, key=own_key(caller, self.key))


class CommitStages(OfStage, frozen=True):
    """Stages that become visible together."""

    stages: list[str] | None = None

    def owned(self, caller: str) -> Self:
        """Return the same with the keys of this caller."""
        stages = None if self.stages is None else [own_key(caller, stage) for stage in self.stages]
        return msgspec.structs.replace(super().owned(caller), stages=stages)


class RedriveTerms(Term, frozen=True):
    """Which dead letters to redrive."""

    topic: str
    subscription: str | None = None
    reason: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    partition: int | None = None
    offsets: list[int] | None = None
    limit: Count = 1_000_000
    rate: int | None = None
    by: str = ""

    def owned(self, caller: str) -> Self:
        """Return the same, signed by this caller."""
        return msgspec.structs.replace(self, by=signed(caller, self.by))


def decoded(kind: type[T], data: Any, what: str) -> T:
    """Decode a term; `InvalidInput` names what does not fit and where."""
    raw = bytes(data)
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as fault:
        raise InvalidInput(what, raw[:200].decode(errors="replace"), str(fault)[:200]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput(what, raw[:200].decode(errors="replace"), f"a JSON object ({fault})") from None


def described(kind: type[T], descriptor: flight.FlightDescriptor) -> T:
    """Decode the command of a descriptor; a path is the name of a topic."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        if len(descriptor.path) != 1:
            raise InvalidInput("path", [part.decode(errors="replace") for part in descriptor.path], "[topic]")
        return decoded(kind, msgspec.json.encode({"topic": descriptor.path[0].decode(errors="replace")}), "path")
    return decoded(kind, descriptor.command, "command")
