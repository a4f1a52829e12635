"""Where a broker is, and how a connection to it is opened: TCP, TLS, or a Unix socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from wherry.model.errors import InvalidInput, Unavailable

PORT = 7070
CONNECT_S = 10.0
HIDDEN = "(not shown)"
ALLOWED = "an address such as http://127.0.0.1:7070 or unix:///run/wherry.sock"

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker: host and port, or the path of a Unix socket."""

    host: str
    port: int = PORT
    secure: bool = False
    socket_path: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse `http://host:port`, `https://host:port` (port 7070 unless it is given) or `unix:///path`."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except (ValueError, AttributeError, TypeError):
            raise InvalidInput("url", url, ALLOWED) from None
        extra = parts.query or parts.fragment or parts.username
        if parts.scheme == "unix" and not (host or extra) and parts.path.startswith("/") and parts.path != "/":
            return cls("localhost", socket_path=unquote(parts.path))
        if parts.scheme not in ("http", "https") or not host or extra or parts.path.strip("/"):
            raise InvalidInput("url", url, ALLOWED)
        return cls(host, PORT if port is None else port, parts.scheme == "https")

    @property
    def authority(self) -> str:
        """Host and port, as in the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The address as errors name it."""
        return self.socket_path or self.authority


def trust(address: Address, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return the certificates to trust at an address; None without TLS."""
    return (tls or ssl.create_default_context()) if address.secure else None


def common_lines(address: Address, key: object) -> str:
    """Return the lines of a head that all requests of a client have: the host, and the API key."""
    bare = _checked(key)
    return f"Host: {address.authority}\r\n" + (f"Authorization: Bearer {bare}\r\n" if bare else "")


def _checked(key: object) -> str:
    """Return an API key without the white space around it, empty for none; an error does not show it."""
    bare = key.strip() if isinstance(key, str) else key
    if bare is None:
        return ""
    if not isinstance(bare, str) or not all("!" <= sign <= "~" for sign in bare):
        raise InvalidInput("api_key", HIDDEN, "text of visible ASCII characters, such as wk_…")
    return bare


async def dial(address: Address, tls: ssl.SSLContext | None, make: Callable[[], P]) -> P:
    """Open a connection and return its protocol, or raise `Unavailable`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            if address.socket_path:
                return (await loop.create_unix_connection(make, address.socket_path))[1]
            return (await loop.create_connection(make, address.host, address.port, ssl=tls))[1]
    except (OSError, TimeoutError) as fault:
        raise Unavailable(f"{address.shown} cannot be reached: {str(fault) or 'no answer'}") from fault
