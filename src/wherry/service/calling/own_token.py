"""The token that a peer calls with: a text, or one of a source that renews it. It asks the source only when it must."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Final

from wherry.client.link.credential import KeyOrSource, TokenSource
from wherry.model.errors import Unauthorized, Unavailable
from wherry.service.outcomes import CallError, RefusalCode, Refused, TimedOut

REJECT_S: Final = 5.0
"""A token that was refused is replaced at most once in this time, so that wrong rights are no flood at the provider."""


class OwnToken:
    """The token of one caller."""

    def __init__(self, source: KeyOrSource) -> None:
        self._source = source
        self.last = source if isinstance(source, str) else ""
        """The token as it was last."""
        self._rejected_at = -REJECT_S

    def at_once(self) -> str | None:
        """Return the token; None if it has to be waited for, with `get`."""
        source = self._source
        if isinstance(source, str):
            return source
        if isinstance(source, TokenSource):
            return self.last if self.last and source.renew_in_s() > 0 else None
        if source is None:
            return ""
        if inspect.iscoroutinefunction(source):
            return None
        given = source()
        if isinstance(given, str):
            self.last = given
            return given
        if inspect.iscoroutine(given):
            given.close()
        return None

    async def get(self, method: str, within_s: float) -> str:
        """Ask the source for the token of a call; raise the error of that call if there is none in time."""
        try:
            async with asyncio.timeout(within_s):
                self.last = await self._asked()
        except TimeoutError:
            fault: CallError = TimedOut(method, "", "no token before the deadline; it was not sent")
            fault.is_unknown = False
            raise fault from None
        except (Unauthorized, Unavailable) as why:
            raise Refused(method, "", RefusalCode.UNAUTHORIZED, f"there is no token to call with: {why}") from None
        return self.last

    async def _asked(self) -> str:
        if isinstance(self._source, TokenSource):
            return await self._source.token()
        assert callable(self._source)
        given = self._source()
        return await given if inspect.isawaitable(given) else given

    def reject(self, token: str) -> bool:
        """Note that a token was refused; return whether there may be another one now."""
        source, now = self._source, time.monotonic()
        if not isinstance(source, TokenSource):
            return False
        if token != self.last:
            return True  # another call has replaced it meanwhile
        if now - self._rejected_at < REJECT_S:
            return False
        self._rejected_at = now
        source.reject(token)
        self.last = ""
        return True
