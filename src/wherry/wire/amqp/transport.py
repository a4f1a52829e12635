"""What a session of AMQP needs of its socket."""

from __future__ import annotations

from typing import Protocol

from wherry.wire.amqp.codec.writer import Piece


class Transport(Protocol):
    """What a session needs of its socket."""

    is_write_paused: bool

    @property
    def waiting(self) -> int:
        """How many events arrived and are not handled yet."""

    @property
    def is_closing(self) -> bool:
        """Whether nothing more can be written."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""

    def write_all(self, pieces: list[Piece]) -> None:
        """Send pieces of bytes to the client."""

    def hang_up(self) -> None:
        """Close once everything is written."""

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """Set the bounds that were negotiated."""

    def mute(self, channel: int) -> None:
        """Ignore everything on a channel except its close."""
