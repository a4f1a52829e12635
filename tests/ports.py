"""Ports for servers that must be found again where they were."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that systems choose for clients: a port that is free here is not taken by a client meanwhile."""


def free_port() -> int:
    """Return a port on which no process listens."""
    chance = random.SystemRandom()
    for _ in range(100):
        port = chance.randint(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port of 127.0.0.1 can be had")
