"""Zenoh: sessions that are connected to each other, in memory, without a router. The producer binds the port."""

from __future__ import annotations

from bench.peers.peer import Peer


class Zenoh(Peer):
    """No server, as `ZeroMq`."""

    name = "zenoh, eclipse-zenoh"
    promise = "in memory, no router, waits for slow readers"
    clients = ("zenoh",)

    def start(self) -> None:
        """Start nothing."""
