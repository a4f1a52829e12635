"""Reads name and password from the response of a SASL mechanism."""

from __future__ import annotations

from wherry.queueing.message.table import Malformed, decode_table


def credentials(mechanism: str, response: bytes) -> tuple[str, str]:
    """Return name and secret; raise `ValueError` if the response has none."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise ValueError("PLAIN is a name and a password, each after a zero octet")
        return parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace")
    if mechanism == "AMQPLAIN":
        try:
            table = decode_table(len(response).to_bytes(4, "big") + response)
        except Malformed as fault:
            raise ValueError(str(fault)) from None
        name, secret = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(name, str) or not isinstance(secret, str):
            raise ValueError("AMQPLAIN is a table with LOGIN and PASSWORD")
        return name, secret
    return response.decode("utf-8", "replace"), ""


def secret_in(mechanism: str, response: bytes) -> str:
    """Return the secret alone; empty if there is none."""
    try:
        return credentials(mechanism, response)[1]
    except ValueError:
        return ""
