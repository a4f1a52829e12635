"""Addresses and certificates of the other end of a socket."""

from __future__ import annotations

import asyncio


def place(address: object) -> str:
    """Return an address as text; a Unix socket is named by its path."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def host_of(address: object) -> str:
    """Return the host of an address, without the port."""
    return str(address[0]) if isinstance(address, tuple) else ""


def certified(transport: asyncio.BaseTransport) -> str | None:
    """Return the common name in the client's verified certificate, if it has one."""
    shown = transport.get_extra_info("peercert") or {}
    names = [value for part in shown.get("subject", ()) for name, value in part if name == "commonName"]
    return str(names[0]) if names else None
