"""The seal on all that members send: made with the key of the cluster, so that no other process can join or speak.

    byte   0         1           17
           │ version │ mac       │ body …
           │ u8 = 1  │ 16 bytes  │

The mac is the beginning of an HMAC-SHA-256 with the key over: "wherry gossip", the version, the channel (u8: 1 packets,
2 state exchanges), the length of the name of the cluster (u8), that name, in state exchanges the nonces of both sides
(16 bytes of the server, 16 of the client), the body. So two clusters with one key never mix, a packet is never taken
for a part of a state exchange, and nothing of one exchange fits another. Bodies are authenticated, not secret.

A packet that was recorded may be sent again at any time. What it claims counts less than the incarnations and versions
that are known since, and an answer counts only for the number of a probe that is under way. At worst a member that was
dead for so long that all have forgotten it is known again until a probe finds it dead.
"""

from __future__ import annotations

import hmac
from copy import copy
from typing import Final

from wherry.mesh.gossip.values import GossipFault
from wherry.model.errors import InvalidInput

VERSION: Final = 1
MAC_BYTES: Final = 16
SEAL_BYTES: Final = 1 + MAC_BYTES
KEY_BYTES_MIN, KEY_BYTES_MAX = 16, 1_024
NONCE_BYTES: Final = 16
CLUSTER_BYTES_MAX: Final = 64
PACKETS, STATES = 1, 2
"""The channels."""


class Seal:
    """The seal of one channel of a cluster. An empty key keeps clusters apart, and keeps nobody out."""

    def __init__(self, key: bytes, cluster: str, channel: int) -> None:
        name = cluster.encode()
        self._key = key
        self._before = b"wherry gossip" + bytes((VERSION, channel, len(name))) + name

    def between(self, server_nonce: bytes, client_nonce: bytes) -> Seal:
        """Return the seal of one state exchange."""
        found = copy(self)
        found._before = self._before + server_nonce + client_nonce
        return found

    def seal(self, body: bytes) -> bytes:
        """Return what is sent."""
        return bytes((VERSION,)) + self._mac(body) + body

    def open(self, data: bytes) -> bytes:
        """Return the body of what was received, or raise `GossipFault`."""
        if len(data) < SEAL_BYTES or data[0] != VERSION:
            raise GossipFault("not a packet of gossip, version 1")
        body = data[SEAL_BYTES:]
        if not hmac.compare_digest(self._mac(body), data[1:SEAL_BYTES]):
            raise GossipFault("a packet with another key or of another cluster")
        return body

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, self._before + body, "sha256")[:MAC_BYTES]


def check_key(key: object) -> bytes:
    """Return a key, or raise `InvalidInput`, which does not show it."""
    allowed = f"no bytes, or {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes"
    if not isinstance(key, bytes):
        raise InvalidInput("key", type(key).__name__, allowed)
    if key and not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise InvalidInput("key", f"{len(key)} bytes", allowed)
    return key


def check_cluster(cluster: object) -> str:
    """Return the name of a cluster, or raise `InvalidInput`."""
    if not isinstance(cluster, str) or not 1 <= len(cluster.encode("utf-8", "replace")) <= CLUSTER_BYTES_MAX:
        raise InvalidInput("cluster", cluster, f"text of 1 to {CLUSTER_BYTES_MAX} UTF-8 bytes")
    if not cluster.isprintable():
        raise InvalidInput("cluster", cluster, "printable text")
    return cluster
