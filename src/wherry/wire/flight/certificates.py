"""The files of TLS, as Flight wants them."""

from __future__ import annotations

from typing import NamedTuple


class Certificates(NamedTuple):
    """TLS in PEM: the chain and its key, and the authority of clients where they must show a certificate."""

    chain: bytes
    key: bytes
    client_ca: bytes | None = None
