"""Access tokens for a program of its own: fetched by client credentials, and renewed before they expire.

    token() ──has a good one──► the same
       └──none, or it expires soon──► one request to the provider, which all callers share

While the provider cannot be reached, a token that has not expired is still given out.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, urlencode

from wherry.model import check
from wherry.model.errors import Unauthorized, Unavailable, WherryError
from wherry.security.oidc.compact import TOKEN_CHARS_MAX, parse_strictly
from wherry.security.oidc.endpoints import checked_issuer, discovery_url, parse_endpoints
from wherry.security.oidc.fetch import FETCH_S, FetchFailed, Form, fetch

EARLY_S, EARLY_SHARE = 30.0, 0.2
"""A token is renewed so long before it expires, or in the last share of its life where that is later."""

RETRY_S = 2.0
"""After a renewal that failed, while the token is still good."""

REJECTED_S, REJECTED_S_MAX = 2.0, 60.0
"""How long a token that was fetched is kept though it is refused: longer each time, as others would be refused too."""

EXPIRES_S, EXPIRES_S_MAX = 60.0, 86_400.0
"""The life of a token where the provider states none, and the longest that is believed."""


class ClientCredentials:
    """A source of access tokens for `key=` of a client, by the client credentials grant of OAuth 2.0.

    Parameters
    ----------
    issuer
        The URL of the provider, as in its tokens; `https`, or `http` on loopback.
    client_id, client_secret
        What the program is at the provider. The secret is sent to the provider only.
    scope
        Scopes to ask for, with blanks between.
    audience
        For providers that want to be told which service the token is for.
    tls
        For `https`: certificates other than the system's.

    Examples
    --------
    >>> source = ClientCredentials("https://id.example.org/realms/shop", "billing", "the secret of the client")
    >>> async def main():
    ...     async with wherry.connect("https://queue.example.org", key=source) as client:
    ...         await client.publish("orders.new", [b"hello"])
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str,
        *,
        scope: str = "",
        audience: str = "",
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer, self.client_id = checked_issuer(issuer), check.graphic("client_id", client_id, 512)
        word = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
        fields = {"grant_type": "client_credentials", "scope": scope, "audience": audience}
        authorization = "Basic " + base64.b64encode(word).decode("ascii")
        self._form = Form(urlencode({name: value for name, value in fields.items() if value}), authorization)
        self._tls, self._clock = tls, clock
        self._url = ""
        self._token = ""
        self._fetched_at = self._renew_at = self._expires_at = 0.0
        self._rejected_s = REJECTED_S
        self._fetching: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self.fetches = 0

    def __repr__(self) -> str:
        return f"ClientCredentials({self.issuer!r}, {self.client_id!r}, …)"

    async def token(self) -> str:
        """Return an access token that is good for a while; raise `Unauthorized` or `Unavailable` if none can be had."""
        if self._token and self._clock() < self._renew_at:
            return self._token
        try:
            await self._fetched()
        except Unavailable:
            if not self._token or self._clock() >= self._expires_at:
                raise
            self._renew_at = min(self._clock() + RETRY_S, self._expires_at)
        return self._token

    def renew_in_s(self) -> float:
        """Return after how many seconds `token` will give another one."""
        return max(0.0, self._renew_at - self._clock())

    def reject(self, token: str) -> None:
        """Forget a token that was refused, so that the next call fetches another; keep one that was just fetched.

        Where a broker refuses whatever comes, the provider is asked less and less often, not at each call.
        """
        age_s = self._clock() - self._fetched_at
        if token != self._token or not token or age_s < self._rejected_s:
            return
        self._rejected_s = REJECTED_S if age_s >= 2 * REJECTED_S_MAX else min(2 * self._rejected_s, REJECTED_S_MAX)
        self._token = ""

    async def _fetched(self) -> None:
        """Fetch a token, or wait for the fetch that another caller began in this event loop."""
        loop = asyncio.get_running_loop()
        if self._fetching is None or self._fetching[0] is not loop or self._fetching[1].done():
            self._fetching = loop, loop.create_task(self._fetch(), name="wherry access token")
        fetching = self._fetching[1]
        await asyncio.wait([fetching])  # which leaves it to others if this caller is cancelled
        fault = None if fetching.cancelled() else fetching.exception()
        if isinstance(fault, WherryError):
            raise type(fault)(*fault.args)  # callers do not share a traceback
        fetching.result()

    async def _fetch(self) -> None:
        self.fetches += 1
        try:
            if not self._url:
                document = await fetch(discovery_url(self.issuer), self._tls)
                self._url = parse_endpoints(document.body, self.issuer).token
                if not self._url:
                    raise ValueError("no token_endpoint that may be asked")
            answer = parse_strictly((await fetch(self._url, self._tls, FETCH_S, self._form)).body)
            self._keep(answer)
        except FetchFailed as fault:
            if fault.status in (400, 401, 403):
                text = f"the identity provider gave client {self.client_id!r} no token: {fault}"
                raise Unauthorized(text) from None
            raise Unavailable(f"the identity provider {self.issuer} cannot be reached: {fault}") from None
        except Exception as fault:
            raise Unavailable(f"the identity provider {self.issuer} gave no token that can be used: {fault}") from None

    def _keep(self, answer: Any) -> None:
        if not isinstance(answer, dict) or str(answer.get("token_type", "")).lower() != "bearer":
            raise ValueError("no bearer token")
        token, lives = answer.get("access_token"), answer.get("expires_in", EXPIRES_S)
        if not isinstance(token, str) or not 0 < len(token) <= TOKEN_CHARS_MAX:
            raise ValueError("no access_token")
        if isinstance(lives, bool) or not isinstance(lives, int | float):
            raise ValueError("expires_in is no number")
        lives_s, now = min(max(float(lives), 0.0), EXPIRES_S_MAX), self._clock()
        self._token, self._fetched_at, self._expires_at = token, now, now + lives_s
        self._renew_at = now + lives_s - min(EARLY_S, lives_s * EARLY_SHARE)
