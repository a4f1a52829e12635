"""Refuses what pages of other sites would do through the browser of a user who can reach this process."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.message import Request


def check_host(request: Request, names: frozenset[str] | None) -> None:
    """Refuse unknown host names where no keys are required: a page could let its own name point at this broker."""
    host = request.headers.get("host", "")
    if names is not None and host and not _is_known(host, names):
        raise HttpError(
            "forbidden",
            f"this broker asks for no keys, so it answers under known names only, and {host[:100]!r} is none of them: "
            f"add it to server.names in the configuration, or ask for keys",
        )


@lru_cache(maxsize=128)
def _is_known(host: str, names: frozenset[str]) -> bool:
    """Return whether a `Host` is an address, which no name server can change, or one of the names."""
    name = re.sub(r":\d*$", "", host.lower()).rstrip(".")
    try:
        ip_address(name[1:-1] if name.startswith("[") else name)
    except ValueError:
        return name == "localhost" or name in names
    return True


def foreign_page(request: Request, origins: frozenset[str]) -> str:
    """Return the origin of a page of another site that may call; empty for the broker's own pages and other clients.

    Other pages are refused: they must not use the broker through the browser of a user who can reach it.
    """
    origin = request.headers.get("origin")
    if origin is None or origin.partition("://")[2] == request.headers.get("host"):
        return ""
    if origin.lower() in origins or ("*" in origins and "://" in origin):
        return origin
    hint = "its own pages and those of server.origins in the configuration may"
    raise HttpError("forbidden", f"a page from {origin[:100]} may not call this broker: {hint}")


def check_site(request: Request) -> None:
    """Refuse requests without an origin that another site caused, such as pictures and links."""
    site = request.headers.get("sec-fetch-site", "none")
    if not request.page and site not in ("none", "same-origin"):
        raise HttpError("forbidden", f"a page from elsewhere ({site[:20]}) may not call this broker")
