"""STOMP over the HTTP port, as this folder sees it: an upgrade, and sessions that are polled. Built elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from wherry.wire.http.upgrade import Upgrade


class Roads(Protocol):
    """Two roads. Errors are those of the model."""

    def upgrade(self, headers: Mapping[str, str], *, peer: str, secure: bool) -> Upgrade:
        """A WebSocket for a request that asks for one, or `InvalidInput`."""

    def open(self, *, peer: str, secure: bool) -> tuple[str, str]:
        """A session that is polled, or `LimitReached`: its id, and the secret that whoever goes on with it shows."""

    def check(self, session: str, token: str) -> None:
        """Whether there is such a session with this secret; else `NotFound`."""

    async def send(self, session: str, at: int, data: bytes) -> tuple[int, bool]:
        """Bytes from a client that begin at a place; those that came before are not heard again.

        How many came so far, and whether nothing more is wanted.
        """

    async def take(self, session: str, after: int, wait_ms: int) -> tuple[bytes, int, bool]:
        """What is there for a client behind a place, which says that it has all before it.

        The bytes, the place behind them, and whether nothing will ever come after them.
        """

    def end(self, session: str) -> None:
        """The client is done."""

    def tick(self, now: float) -> None:
        """About once a second, by the steady clock: end the sessions of which nothing is heard."""
