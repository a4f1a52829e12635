"""TLS of a listener: a context from files, which are loaded again when they change.

A certificate that changes on disk (certificates are renewed every few weeks) is used from the next handshake on; open
connections stay as they are. A broken new file is logged, and the old one stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from wherry.model.errors import InvalidInput

POLL_S = 5.0

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2: only those with forward secrecy. TLS 1.3 has no others."""

_log = logging.getLogger("wherry.tls")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of the certificate chain, its key and the authority of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_required: bool = True
    """With a `client_ca`: whether a client without a certificate is refused."""

    def stamps(self) -> list[tuple[int, int, int] | None]:
        """What shows that a file changed: its inode changes when another file is renamed over it."""
        return [_stamp(path) for path in (self.certificate, self.key, self.client_ca) if path is not None]


class Tls:
    """A TLS context that loads its files again when they change."""

    def __init__(self, files: TlsFiles, poll_s: float = POLL_S) -> None:
        self._files = files
        self._poll_s = poll_s
        self._seen = files.stamps()
        self.context = _context(files)

    def refresh(self) -> bool:
        """Load files that changed; return whether any had.

        They are loaded into another context first: half of a pair, loaded into the context that serves, would leave it
        without a certificate. An authority of clients can be added this way; to remove one takes a restart.
        """
        stamps = self._files.stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            _context(self._files)
            _load(self.context, self._files)
        except InvalidInput as fault:
            _log.warning("the new TLS files are not used, the old ones still are: %s", fault)
            return False
        _log.info("new TLS files are in use", extra={"certificate": str(self._files.certificate)})
        return True

    async def follow(self) -> None:
        """Check the files again and again, for ever."""
        while True:
            await asyncio.sleep(self._poll_s)
            self.refresh()


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    context.num_tickets = 0  # or a client's first read meets its first write: threads of stomp.py lost the write
    _load(context, files)
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if files.client_required else ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as fault:
        given = f"{files.certificate}, {files.key}"
        raise InvalidInput("tls.certificate, tls.key", given, f"a PEM chain and its key ({fault})") from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as fault:
            raise InvalidInput("tls.client_ca", str(files.client_ca), f"PEM certificates ({fault})") from None


def _no_password() -> Never:
    """Refuse a key with a passphrase: OpenSSL would ask for it on the terminal, and block the broker."""
    raise ValueError("the key is encrypted; a broker that starts by itself needs one that is not")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
