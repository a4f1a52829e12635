"""Who is at the other end of a socket."""

from __future__ import annotations

import asyncio


def place(address: object) -> str:
    """An address as people write it; a socket of the file system is named by its path."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def host_of(address: object) -> str:
    """The machine that an address is of, whatever the port."""
    return str(address[0]) if isinstance(address, tuple) else ""


def certified(transport: asyncio.BaseTransport) -> str | None:
    """The common name in a certificate that the client has shown and that was verified."""
    shown = transport.get_extra_info("peercert") or {}
    names = [value for part in shown.get("subject", ()) for name, value in part if name == "commonName"]
    return str(names[0]) if names else None
