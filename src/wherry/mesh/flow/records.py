"""What nodes announce of themselves in `system.peers`, and which of it still counts.

A record counts from when it was read until `expires_ms` later, by the clock of the reader: clocks of nodes are never
compared. Of two records of a node the one with the higher version is the newer; an older one changes nothing.
"""

from __future__ import annotations

import msgspec

from wherry.mesh.instance import URL_CHARS_MAX, check_url
from wherry.model import check, limits
from wherry.model.catalog.subscription import ROLES, Role
from wherry.model.errors import InvalidInput

TOPIC = "system.peers"

RECORD_BYTES_MAX = 2 << 10
RECORDS_MAX = 512
"""Nodes that are remembered; beyond that a new one is not taken before another has expired."""


class PeerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the mesh: its name, its address, its role, for a leaf the name of its hub, and how new this is."""

    node: str
    url: str
    role: Role = "hub"
    hub: str | None = None
    version: int = 0

    def checked(self) -> PeerRecord:
        """Return this record, or raise `InvalidInput` for the first field that breaks a rule."""
        check.graphic("node", self.node, limits.NODE_NAME_CHARS_MAX)
        check_url(self.url)
        check.one_of("role", self.role, ROLES)
        if self.hub is not None:
            check.graphic("hub", self.hub, limits.NODE_NAME_CHARS_MAX)
        check.integer("version", self.version, 0, (1 << 63) - 1)
        return self


_DECODER = msgspec.json.Decoder(PeerRecord)

assert URL_CHARS_MAX + 3 * limits.NODE_NAME_CHARS_MAX * 4 < RECORD_BYTES_MAX


def encode(record: PeerRecord) -> bytes:
    """Return the bytes of a record.

    Examples
    --------
    >>> decode(encode(PeerRecord(node="a", url="http://10.0.0.7:7070"))).node
    'a'
    """
    return msgspec.json.encode(record)


def decode(content: bytes) -> PeerRecord:
    """Return a record that any client may have published; raise `InvalidInput` for bytes that are none."""
    if len(content) > RECORD_BYTES_MAX:
        raise InvalidInput("record", f"{len(content)} bytes", f"at most {RECORD_BYTES_MAX} bytes")
    try:
        return _DECODER.decode(content).checked()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput("record", content[:100], f"the JSON of a node ({fault})") from None


class KnownPeers:
    """The records that count, by node."""

    def __init__(self, expires_ms: int) -> None:
        self._expires_ms = expires_ms
        self._records: dict[str, tuple[PeerRecord, int]] = {}

    def learn(self, record: PeerRecord, now_ms: int) -> None:
        """Take a record that was read at a time of the reader's clock."""
        known = self._records.get(record.node)
        if known is None and len(self._records) >= RECORDS_MAX:
            return
        if known is None or known[0].version < record.version:
            self._records[record.node] = (record, now_ms)

    def expire(self, now_ms: int) -> None:
        """Drop the records of nodes that have announced nothing for too long."""
        for node, (_, seen_ms) in list(self._records.items()):
            if now_ms - seen_ms >= self._expires_ms:
                del self._records[node]

    @property
    def records(self) -> list[PeerRecord]:
        """Return the records by the names of their nodes."""
        return [self._records[node][0] for node in sorted(self._records)]
