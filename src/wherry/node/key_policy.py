"""Whether this node requires keys, decided before it listens; and the first key of a broker that has none."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from pathlib import Path

from wherry.broker.port.port import BrokerPort
from wherry.model.catalog.key import Right
from wherry.model.errors import WherryError
from wherry.node.config import SecuritySection
from wherry.security.keys import make

FIRST_KEY = "admin.key"
"""The file in the data directory with the first key; it is not printed, since output ends up in logs."""


class OpenRefused(WherryError):
    """Other machines could reach this address, and no key would be required."""

    code = "open-refused"


def is_loopback(host: str) -> bool:
    """Return whether an address or name is of this machine only; false for a name that does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def requires_keys(security: SecuritySection, host: str, *, has_keys: bool) -> bool:
    """Return whether requests need a key; raise `OpenRefused` if other machines can reach `host` without one."""
    if security.keys == "on" or (security.keys == "auto" and has_keys):
        return True
    if not is_loopback(host) and not security.open:
        raise OpenRefused(
            f"{host} can be reached from elsewhere, and without keys everyone there could read and delete everything. "
            f"Ask for keys with --keys on (the first start writes an admin key into the data directory), "
            f"listen on 127.0.0.1, or say --open if that is what you want"
        )
    return False


def has_keys(broker: BrokerPort) -> bool:
    """Return whether there is a key with a token.

    Users of AMQP do not count: adding one does not make keys required.
    """
    known = broker.keys()
    return any(key.user is None for key in known)


async def first_key(broker: BrokerPort, folder: Path) -> Path | None:
    """Make a key with all rights, if there is no key yet; return the file with its token, readable by its owner only.

    The file is written first: a stored key whose token is lost would lock all clients out.
    """
    if has_keys(broker):
        return None
    made = make("admin", [Right("admin", "*")], now_ms=time.time_ns() // 1_000_000)
    file = folder / FIRST_KEY
    _write_private(file, made.token + "\n")
    await broker.put_key(made.key)
    return file


def _write_private(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(text)
        out.flush()
        os.fsync(descriptor)
