"""Collects what is sent to a client in one turn of the loop: one CONFIRM, one SETTLED, one write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wherry.wire.native.codec.frames import Chunk
from wherry.wire.native.codec.publishes import ConfirmEntry, encode_confirm
from wherry.wire.native.codec.settles import encode_settled, ranges_of


class Outgoing:
    """What a session has to send and has not written yet."""

    def __init__(
        self,
        at_end_of_turn: Callable[[Callable[[], None]], None],
        write: Callable[[list[Chunk]], None],
        written: Callable[[], None],
    ) -> None:
        self._at_end_of_turn, self._write, self._written = at_end_of_turn, write, written
        self._chunks: list[Chunk] = []
        self._entries: list[ConfirmEntry] = []
        self._next: tuple[int, int, int, int] | None = None
        """Request, partition, offset and flags with which a confirm continues the last entry."""
        self._settled: list[int] = []
        self._is_scheduled = False

    @property
    def is_empty(self) -> bool:
        """Whether everything was written."""
        return not (self._chunks or self._entries or self._settled)

    def send(self, *chunks: Chunk) -> None:
        """Send a frame behind those of this turn."""
        self._chunks += chunks
        self._schedule()

    def settled(self, number: int) -> None:
        """Answer a SETTLE or RENEW."""
        self._settled.append(number)
        self._schedule()

    def confirm(
        self,
        number: int,
        partition: int,
        offset: int,
        messages: int,
        flags: int,
        dead: int = 0,
        places: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Answer a PUBLISH; joins the entry before it if ids and offsets continue that one."""
        entries = self._entries
        if not (dead or places) and self._next == (number, partition, offset, flags):
            last = entries[-1]
            entries[-1] = last._replace(requests=last.requests + 1)
        else:
            entries.append(ConfirmEntry(number, 1, partition, offset, flags, dead, places))
        self._next = None if dead or places else (number + 1, partition, offset + messages, flags)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._at_end_of_turn(self.flush)

    def flush(self) -> None:
        """Write everything now. Called at the end of the turn, and before the connection is closed."""
        self._is_scheduled = False
        chunks, self._chunks = self._chunks, []
        if self._settled:
            settled, self._settled = self._settled, []
            chunks.insert(0, encode_settled(((settled[0], 1),) if len(settled) == 1 else ranges_of(settled)))
        if self._entries:
            chunks.insert(0, encode_confirm(self._entries))
            self._entries, self._next = [], None
        if chunks:
            self._write(chunks)
        self._written()
