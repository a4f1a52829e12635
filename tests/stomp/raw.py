"""STOMP by hand, for what no client library lets one do. It shares nothing with `wherry.wire.stomp.codec`."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import NamedTuple, Self

PATIENCE_S = 20.0


class ReceivedFrame(NamedTuple):
    """A frame of the broker."""

    command: str
    headers: dict[str, str]
    body: bytes

    @property
    def why(self) -> str:
        """Return all that an ERROR has about what is wrong."""
        return "\n".join((self.headers["message"], self.body.decode(), self.headers.get("explanation", "")))


def frame(command: str, body: bytes = b"", /, **headers: str) -> bytes:
    """Return a frame; `_` in a name stands for `-`."""
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


class Raw:
    """A connection that sends what the test gives it."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, patience_s: float = PATIENCE_S) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=patience_s)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self._seen = b""
        self.version = "1.0"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        self.socket.sendall(frame(command, body, **headers))

    def connect(self, version: str = "1.2", /, **headers: str) -> ReceivedFrame:
        """Log in; the answer, which must be that we are in."""
        accept = {} if version == "1.0" else {"accept_version": version}
        self.send("CONNECT", **{"login": "guest", "passcode": "guest", "host": "/", **accept, **headers})
        self.version = version
        return self.expect("CONNECTED")

    def _more(self) -> None:
        more = self.socket.recv(1 << 16)
        if not more:
            raise EOFError(f"the broker hung up; last was {self._seen[:500]!r}")
        self._seen += more

    def next(self) -> ReceivedFrame:
        """Return the next frame, whatever newlines come before it."""
        while True:
            self._seen = self._seen.lstrip(b"\n")
            head, empty, rest = self._seen.partition(b"\n\n")
            if empty:
                command, *lines = head.decode().split("\n")
                headers: dict[str, str] = {}
                for line in lines:
                    name, _, value = line.partition(":")
                    headers.setdefault(self._plain(name), self._plain(value))
                size = int(headers["content-length"]) if "content-length" in headers else rest.find(b"\0")
                if 0 <= size < len(rest):
                    assert rest[size] == 0, rest
                    self._seen = rest[size + 1 :]
                    return ReceivedFrame(command, headers, rest[:size])
            self._more()

    def _plain(self, text: str) -> str:
        if self.version == "1.0":
            return text
        parts = text.split("\\\\")
        return "\\".join(each.replace("\\n", "\n").replace("\\c", ":").replace("\\r", "\r") for each in parts)

    def expect(self, command: str) -> ReceivedFrame:
        found = self.next()
        assert found.command == command, found
        return found

    def receipt(self, named: str) -> None:
        """Check that the next frame is this receipt."""
        assert self.expect("RECEIPT").headers["receipt-id"] == named

    def done(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame, and wait for its receipt; nothing else comes in between."""
        self.send(command, body, receipt="done", **headers)
        self.receipt("done")

    def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of the next messages."""
        return [self.expect("MESSAGE").body for _ in range(count)]

    def error(self) -> ReceivedFrame:
        """Return an ERROR, after which the broker hangs up; messages and receipts before it are passed over."""
        while (found := self.next()).command != "ERROR":
            pass
        assert self.is_hung_up()
        return found

    def is_hung_up(self) -> bool:
        """Return whether the broker ends the connection, whatever it sends before."""
        try:
            while True:
                self._more()
        except (EOFError, ConnectionError, ssl.SSLError):
            return True
        except TimeoutError:
            return False

    def silent(self, seconds: float = 0.3) -> bool:
        """Return whether nothing but heart-beats comes for a while. Only for what must not come at all."""
        self.socket.settimeout(seconds)
        try:
            found = self.next()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)
        raise AssertionError(f"not silent: {found}")
