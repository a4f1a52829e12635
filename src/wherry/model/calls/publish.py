"""Values of a publish: options beside the messages, and the answer with their offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.model import check, limits
from wherry.model.calls.origin import ORIGIN, Origin
from wherry.model.catalog.topic import Mesh, Topic
from wherry.model.errors import InvalidInput

Int64: TypeAlias = npt.NDArray[np.int64]

FINGERPRINT_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Options of a publish.

    Parameters
    ----------
    partition
        The partition of all messages. Without it the key decides; messages without a key go to one partition after the
        other, by call.
    producer, sequence
        The producer, and the number of its first message: a repeat of the call gets the offsets of the first call.
    fingerprint
        Identifies the content, such as a hash of the messages: a repeat with another fingerprint is refused.
    persistent
        False: never written to disk, lost with the process. None: as the topic is configured.
    callback
        A URL to which the fate of each message is sent, when it is delivered and when it has ended.
    origin
        Where a peer of this node got the messages from. Only the node itself gives it: messages that came before
        are dropped, and the answer has those that are new.
    """

    partition: int | None = None
    producer: str | None = None
    sequence: int | None = None
    persistent: bool | None = None
    callback: str | None = None
    fingerprint: int | None = None
    origin: Origin | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no option belongs to a single call, so that messages of several calls may be one batch."""
        return self is PLAIN or (self.persistent in (None, True, False) and self == _PLAIN[self.persistent])

    def checked(self, topic: Topic) -> PublishOptions:
        """Return these options, or raise `InvalidInput` where they do not fit the topic.

        Of a callback only whether it fits: the broker has checked the URL, and a node whether it may be called.
        """
        if self.partition is not None:
            check.integer("partition", self.partition, 0, topic.partitions - 1)
        if (self.producer is None) != (self.sequence is None):
            raise InvalidInput("sequence", self.sequence, "a number together with a producer, or neither")
        if self.producer is not None:
            check.graphic("producer", self.producer, limits.PRODUCER_ID_CHARS_MAX)
            if self.producer.startswith(ORIGIN):
                raise InvalidInput("producer", self.producer, f"a name that does not begin with {ORIGIN}")
            check.integer("sequence", self.sequence, 0, 1 << 62)
            check.optional_integer("fingerprint", self.fingerprint, 1, FINGERPRINT_MAX)
        elif self.fingerprint is not None:
            raise InvalidInput("fingerprint", self.fingerprint, "one together with a producer, or none")
        if self.origin is not None and (self.producer is not None or self.callback is not None or not topic.flows):
            raise InvalidInput("origin", self.origin.place, "one without producer and callback, in a topic that flows")
        if self.persistent is not None and type(self.persistent) is not bool:
            check.flag("persistent", self.persistent)
        persistent = topic.persistent if self.persistent is None else self.persistent
        if self.callback is not None and not persistent:
            raise InvalidInput("callback", self.callback, "none for transient messages: a callback survives a restart")
        return self


PLAIN = PublishOptions()
"""The options of a call that gives none."""

_PLAIN = {each: PublishOptions(persistent=each) for each in (None, True, False)}


class CommittedParts(list[tuple[str, int, int, int]]):
    """Where a commit placed messages: `(topic, partition, first offset, count)` for each part.

    `mesh` names the guarantee of each topic: `safe`, or `flow` as in `Published`.
    """

    def __init__(self, parts: Iterable[tuple[str, int, int, int]], mesh: dict[str, Mesh]) -> None:
        super().__init__(parts)
        self.mesh = mesh


class Published:
    """Where the messages of one call are, row by row. `repeated`: an earlier call had published them.

    `mesh` names the guarantee: `safe`, or `flow` if the messages are stored here and passed on to other nodes later.

    An answer about one run of offsets is kept as three numbers, and its columns are made when they are asked for.
    """

    __slots__ = ("_columns", "_run", "dead", "durable", "mesh", "repeated")

    def __init__(
        self,
        partition: Int64,
        offset: Int64,
        repeated: bool = False,
        dead: int = 0,
        durable: bool = True,
        mesh: Mesh = "safe",
    ) -> None:
        self._columns: tuple[Int64, Int64] | None = (partition, offset)
        self._run: tuple[int, int, int] | None = None
        self.repeated, self.dead, self.durable, self.mesh = repeated, dead, durable, mesh

    @classmethod
    def run(cls, partition: int, first: int, count: int, *, durable: bool = True, mesh: Mesh = "safe") -> Published:
        """Return the answer for messages that are in one partition, at consecutive offsets from `first` on."""
        made = cls.__new__(cls)
        made._columns, made._run = None, (partition, first, count)
        made.repeated, made.dead, made.durable, made.mesh = False, 0, durable, mesh
        return made

    def one_run(self) -> tuple[int, int, int] | None:
        """Return partition, first offset and count if the answer was made of one run; else None."""
        return self._run

    def part(self, start: int, stop: int, *, dead: int = 0) -> Published:
        """Return the answer for some of the messages, of which `dead` are dead letters."""
        if self._run is not None:
            partition, first, _ = self._run
            return Published.run(partition, first + start, stop - start, durable=self.durable, mesh=self.mesh)
        partition_of, offset_of = self.partition[start:stop], self.offset[start:stop]
        return Published(partition_of, offset_of, dead=dead, durable=self.durable, mesh=self.mesh)

    @property
    def partition(self) -> Int64:
        """The partition of each message."""
        return self._arrays()[0]

    @property
    def offset(self) -> Int64:
        """The offset of each message."""
        return self._arrays()[1]

    def __len__(self) -> int:
        return self._run[2] if self._run is not None else len(self.offset)

    def __repr__(self) -> str:
        flags = f"repeated={self.repeated}, dead={self.dead}, durable={self.durable}, mesh={self.mesh!r}"
        return f"Published(partition={self.partition.tolist()}, offset={self.offset.tolist()}, {flags})"

    def _arrays(self) -> tuple[Int64, Int64]:
        if self._columns is None:
            assert self._run is not None
            partition, first, count = self._run
            self._columns = np.full(count, partition), np.arange(first, first + count)
        return self._columns

    def ids(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the default ids of some of the messages; a message with an id of its own has that id instead."""
        if self._run is not None:
            number, first, count = self._run
            return [f"{number}-{first + at}" for at in range(count)[start:stop]]
        partition, offset = self.partition[start:stop].tolist(), self.offset[start:stop].tolist()
        return [f"{p}-{o}" for p, o in zip(partition, offset, strict=True)]
