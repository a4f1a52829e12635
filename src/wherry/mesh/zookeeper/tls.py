"""TLS to ZooKeeper: sockets for kazoo, made with a context of ours.

Servers must show a certificate of a trusted authority, with their name or address as the URL of the registry has it;
kazoo's own context would also trust the authorities of the system, and check no name.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from wherry.model.errors import InvalidInput


def zookeeper_tls(ca: str | None = None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Return a context from PEM files; raise `InvalidInput` for the first that cannot be used, without its path.

    Parameters
    ----------
    ca
        The authorities that are trusted; those of the system without it.
    certificate, key
        What this process shows to servers that ask for a certificate; `key` is needed if it is in a file of its own.
    """
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    except (OSError, ValueError) as fault:
        raise _unusable("ca", fault) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if key is not None and certificate is None:
        raise InvalidInput("key", "a file", "a certificate beside it")
    if certificate is not None:
        try:
            # A key with a password would be asked for at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (OSError, ValueError) as fault:
            raise _unusable("certificate", fault) from None
    return context


def _unusable(field: str, fault: Exception) -> InvalidInput:
    why = fault.strerror if isinstance(fault, OSError) and fault.strerror else type(fault).__name__
    return InvalidInput(field, f"a file that cannot be used ({why})", "a PEM file, a key in it without a password")


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Makes kazoo's connections; `fault` is why the last one failed, empty if TLS was not the reason."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self.fault = ""

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Connect, and return when the server has shown that it is the one of this name."""
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            made = self._context.wrap_socket(plain, server_hostname=hostname or address[0])
        except BaseException as fault:
            plain.close()
            self.fault = _text(fault)
            raise
        self.fault = ""
        return made

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """Wait as kazoo does, but not for bytes that are decrypted already: the socket below has no more of them."""
        ready = [each for each in rlist if isinstance(each, ssl.SSLSocket) and each.pending()]
        readable, writable, broken = super().select(rlist, wlist, xlist, 0 if ready else timeout)
        return [*ready, *(each for each in readable if each not in ready)], writable, broken


def _text(fault: BaseException) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        return fault.verify_message
    return str(getattr(fault, "reason", None) or str(fault) or type(fault).__name__)
