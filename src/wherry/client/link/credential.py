"""What identifies a client at a broker: a key as it is, or a source that is asked for a token at each connection."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

from wherry.client.link.address import Address, common_lines


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

    def __init__(self, address: Address, key: KeyOrSource) -> None:
        self._address, self._key = address, key
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
        lines, token = await self.lines()
        return lines if token != refused else ""
