"""The certificates of TLS, in the form that Flight needs."""

from __future__ import annotations

from typing import NamedTuple


class Certificates(NamedTuple):
    """TLS in PEM: the chain and its key, and the authority of clients where they must have a certificate."""

    chain: bytes
    key: bytes
    client_ca: bytes | None = None
