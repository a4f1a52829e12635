"""How people sign in at the console, beside keys: where the provider is, and what its page may connect to for that.

Nothing here is secret, and nothing is asked: the page gets a token by itself, from the provider.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.protocol.message import Answer, json_response

if TYPE_CHECKING:  # the page of services has no broker, and imports none
    from wherry.wire.http.api.service import ApiCall

TABLE = EndpointGroup("keys")

_PLACE = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?")
"""A host and a port as a policy can name them; it has no form for addresses of IPv6."""


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """An identity provider, and the public client that the console is there.

    `authorization_url` and `token_url` are null while the node has not reached the provider, or where it has none that
    the console can use; `end_session_url` is null where nobody can sign out there. With `names_issuer`, the provider
    names itself in every answer that comes over the browser.
    """

    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    authorization_url: str | None = None
    token_url: str | None = None
    end_session_url: str | None = None
    names_issuer: bool = False


class SignInView(msgspec.Struct):
    """The ways to sign in at the console beside keys: by a provider, or null."""

    provider: ProviderView | None


class SignInAnswer(msgspec.Struct, frozen=True):
    """What a provider may append to the address of the console, if it does not answer behind the `#` as it is asked."""

    code: str = ""
    state: str = ""
    iss: str = ""
    session_state: str = ""
    scope: str = ""
    error: str = ""
    error_description: str = ""
    error_uri: str = ""


@TABLE.add("GET", "/v1/sign-in", "none", answers={200: SignInView})
async def sign_in(call: ApiCall) -> Answer:
    """Show how people sign in at the console, beside keys: the endpoints of the provider, and the console's client."""
    return json_response(SignInView(call.service.provider()), headers=[("Cache-Control", "no-store")])


def connectable(url: str) -> str:
    """Return a URL as a policy of a page names it, without its query; empty where a policy cannot."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or _PLACE.fullmatch(parts.netloc) is None:
        return ""
    path = re.sub(r"[^!-~]|[;,'\"]", lambda sign: f"%{ord(sign[0]):02X}", parts.path or "/")
    return f"{parts.scheme}://{parts.netloc}{path}"
