"""What identifies a client at a broker: a key as it is, or a source that is asked for a token at each connection."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

from wherry.client.link.address import Address, common_lines
from wherry.model.pauses import growing

PAUSE_S, PAUSE_S_MAX = 2.0, 60.0
"""Between two tokens that a function is asked for since the last one was refused; twice as long each time."""


@runtime_checkable
class TokenSource(Protocol):
    """Gives access tokens; `wherry.ClientCredentials` is one."""

    async def token(self) -> str:
        """Return a token that is good for a while."""

    def reject(self, token: str, /) -> None:
        """Note that a token was refused."""

    def renew_in_s(self) -> float:
        """Return after how many seconds `token` gives another one."""


KeyOrSource: TypeAlias = str | TokenSource | Callable[[], str | Awaitable[str]] | None
"""A key, or where to get a token from."""


class Credential:
    """The lines of a head that identify a client."""

    def __init__(self, address: Address, key: KeyOrSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._key, self._clock = address, key, clock
        self._refusals, self._ask_at = 0, 0.0
        """How often tokens of a function were refused in a row, and when it is asked for another one again."""
        has_source = isinstance(key, TokenSource) or callable(key)
        self.fixed = "" if has_source else common_lines(address, key)
        """The lines, if they never change."""

    @property
    def source(self) -> TokenSource | None:
        """Return the source, if it knows when its tokens expire."""
        return self._key if isinstance(self._key, TokenSource) else None

    async def lines(self) -> tuple[str, str]:
        """Return the lines as they are now, and the token in them, by which to say which one was refused."""
        if self.fixed:
            return self.fixed, ""
        token = await self.token()
        return common_lines(self._address, token), token

    async def token(self) -> str:
        """Ask the source for a token."""
        if isinstance(self._key, TokenSource):
            return await self._key.token()
        assert callable(self._key)
        given = self._key()
        return await given if inspect.isawaitable(given) else given

    async def other_lines(self, refused: str) -> str:
        """Return other lines after the broker refused this token; empty if the source has no other token."""
        if self.fixed:
            return ""
        if isinstance(self._key, TokenSource):
            self._key.reject(refused)
        elif not self._may_ask():
            return ""
        lines, token = await self.lines()
        return lines if token != refused else ""

    def _may_ask(self) -> bool:
        """Return whether a function may be asked again: ever less often, where a broker refuses all of its tokens."""
        now = self._clock()
        if now < self._ask_at:
            return False
        if now - self._ask_at >= PAUSE_S_MAX:
            self._refusals = 0
        self._ask_at = now + growing(PAUSE_S, PAUSE_S_MAX, self._refusals)
        self._refusals += 1
        return True
