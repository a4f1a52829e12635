"""ZeroMQ: sockets without a server, in memory, at most once. The producer binds the port."""

from __future__ import annotations

from bench.peers.peer import Peer


class ZeroMq(Peer):
    """No server: the processes that produce and consume are connected to each other."""

    name = "ZeroMQ, pyzmq"
    promise = "in memory, no server"
    clients = ("zmq",)

    def start(self) -> None:
        """Start nothing."""
