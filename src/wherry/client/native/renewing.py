"""Keeps a connection of the native wire open beyond the life of its token, by sending each new token on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from wherry.client.link.credential import TokenSource
from wherry.client.link.transport import ClientRequest
from wherry.model.errors import WherryError
from wherry.wire.native.codec.frames import PATH

if TYPE_CHECKING:
    from wherry.client.native.session import NativeSession

PAUSE_S_MIN = 0.5
"""Between two tokens, and after a failure."""


async def renew_key(session: NativeSession, source: TokenSource) -> None:
    """Send each new token of a source, until the connection is lost.

    A failure is left to the broker, which cuts the connection off when its token expires; the next one asks the source.
    """
    while not session.is_closed:
        await asyncio.sleep(max(source.renew_in_s(), PAUSE_S_MIN))
        try:
            body = msgspec.json.encode({"key": await source.token()})
            await session.call(ClientRequest("PUT", f"{PATH}/key", [body], "application/json"))
        except WherryError:
            continue
