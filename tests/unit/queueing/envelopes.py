"""Envelopes of messages, made by hand."""

from __future__ import annotations


def envelope(size: int) -> bytes:
    """Return an envelope of about so many bytes: exchange and key are empty, and one header is long."""
    name, value = b"\x01a", b"S" + size.to_bytes(4, "big") + b"x" * size
    table = name + value
    return b"A\0\0" + b"\x20\x00" + len(table).to_bytes(4, "big") + table
