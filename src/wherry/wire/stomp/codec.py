r"""Parses and writes STOMP frames; uses no socket, no clock and no destinations.

    frame     command EOL *(name ":" value EOL) EOL body NUL
    EOL       LF, or CR LF where the line of the command ends so
    body      `content-length` bytes, or without that header all bytes up to the first NUL

    escapes   1.0: none · 1.1: \n \c \\ · 1.2: \r too · never in CONNECT and CONNECTED

Between frames there may be any number of EOLs, which are heart-beats, and of NULs. `FrameReader.feed` returns frames as
they become complete. It returns a `StompFault`, and nothing after it, for a frame that breaks a rule, exceeds a bound,
or has a `content-length` above the bound: bytes after a broken rule of framing cannot be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

V10, V11, V12 = "1.0", "1.1", "1.2"
VERSIONS = (V10, V11, V12)

COMMANDS = frozenset(
    {
        *("CONNECT", "STOMP", "DISCONNECT", "SEND", "SUBSCRIBE", "UNSUBSCRIBE"),
        *("ACK", "NACK", "BEGIN", "COMMIT", "ABORT"),
    }
)
"""The commands that a client may send."""

UNESCAPED = frozenset({"CONNECT", "STOMP"})
"""Headers of these are not escaped: the client does not know the version yet."""

COMMAND_BYTES_MAX = 16
HEADERS_MAX = 256
HEAD_BYTES_MAX = 64 << 10
"""Bytes of the command and all headers together."""

BODY_BYTES_MAX = 16 << 20

_HEADS_MAX = 32
_HEAD_KEPT_BYTES = 512
"""Heads of SENDs up to this size are parsed once and cached: most producers give all their messages the same one."""


class StompFault(Exception):
    """A rule that the client broke. `text` is the `message` header of the ERROR frame, `detail` its body.

    Both are RabbitMQ's words where it has some, since clients compare them; `explanation` is a further header.
    """

    def __init__(self, text: str, detail: str = "", explanation: str = "") -> None:
        super().__init__(text, detail, explanation)
        self.text, self.detail, self.explanation = text, detail, explanation

    def __str__(self) -> str:
        both = ": ".join(each for each in (self.text, self.detail.rstrip("\n").replace("\n", " ")) if each)
        return f"{both} ({self.explanation})" if self.explanation else both


class Head(NamedTuple):
    """A command and its headers; of several headers of one name the first counts. Shared by frames: never changed."""

    command: str
    headers: dict[str, str]


class Frame(NamedTuple):
    """A frame of a client. Frames with the same short head share one `head` object."""

    head: Head
    body: bytes

    @property
    def command(self) -> str:
        return self.head.command

    @property
    def headers(self) -> dict[str, str]:
        return self.head.headers


class FrameReader:
    """Parses bytes into frames."""

    def __init__(self, *, body_max: int = BODY_BYTES_MAX) -> None:
        self.version = V10
        """The version by which headers are parsed. The handler of CONNECT sets it, before the next frame is parsed."""
        self.body_max = body_max
        self._buffer = bytearray()
        self._scanned = 0
        """Where the search for the end of the frame continues: no byte is searched twice."""
        self._head: tuple[Head, int] | None = None
        """The head of the frame at the front of the buffer, once it is complete, and where its body begins."""
        self._heads: dict[tuple[str, bytes], Head] = {}
        self._broken = False

    @property
    def partial_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame | StompFault]:
        """Yield the frames that these bytes complete. Take all of them before the next call."""
        if self._broken:
            return
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        at = 0
        try:
            while True:
                found = self._next(buffer, at)
                if found is None:
                    break
                frame, at = found
                self._scanned = at
                yield frame
        except StompFault as fault:
            self._broken = True
            self._buffer = bytearray()
            self._head = None
            yield fault
            return
        self._keep(buffer, at)

    def _keep(self, buffer: bytes | bytearray, at: int) -> None:
        """Keep the bytes of an incomplete frame. Bytes between frames are not kept."""
        at = _after_eols(buffer, at) if self._head is None else at
        if buffer is self._buffer:
            del self._buffer[:at]
        else:
            self._buffer = bytearray(buffer[at:])
        self._scanned = max(0, self._scanned - at)
        if self._head is not None:
            self._head = (self._head[0], self._head[1] - at)

    def _next(self, buffer: bytes | bytearray, at: int) -> tuple[Frame, int] | None:
        """Return the frame that begins at `at`, and where the next one begins; None if it is incomplete."""
        if self._head is None:
            at = _after_eols(buffer, at)
            self._head = self._next_head(buffer, at)
            if self._head is None:
                return None
            self._scanned = self._head[1]
        head, start = self._head
        end = self._end_of_body(buffer, head, start)
        if end is None:
            return None
        self._head = None
        return Frame(head, bytes(buffer[start:end])), end + 1

    def _next_head(self, buffer: bytes | bytearray, at: int) -> tuple[Head, int] | None:
        search = max(at, self._scanned - 2)
        end, start = _empty_line(buffer, search, at + HEAD_BYTES_MAX + 3)
        known = len(buffer) if end < 0 else end
        _check_head(buffer, at, known, search, is_whole=end >= 0)
        if end < 0:
            self._scanned = len(buffer)
            return None
        return self._parsed(bytes(buffer[at:end])), start

    def _parsed(self, raw: bytes) -> Head:
        key = (self.version, raw)
        known = self._heads.get(key)
        if known is None:
            known = parse_head(raw, self.version)
            if len(raw) <= _HEAD_KEPT_BYTES and raw.startswith(b"SEND\n") and b"\nreceipt:" not in raw:
                if len(self._heads) >= _HEADS_MAX:
                    self._heads.clear()
                self._heads[key] = known
        return known

    def _end_of_body(self, buffer: bytes | bytearray, head: Head, start: int) -> int | None:
        length = head.headers.get("content-length")
        if length is None:
            end = buffer.find(b"\0", self._scanned)
            size = (len(buffer) if end < 0 else end) - start
            if size > self.body_max:
                raise _too_large(size, self.body_max)
            self._scanned = len(buffer)
            return None if end < 0 else end
        end = start + _content_length(length, self.body_max)
        if len(buffer) <= end:
            return None
        if buffer[end]:
            raise StompFault(
                "malformed frame received",
                f"the body of {head.command} does not end with NUL after {length} bytes, as content-length says",
            )
        return end


_BETWEEN_FRAMES = re.compile(rb"[\n\0]*+(?:\r\n[\n\0]*+)*+")


def _after_eols(buffer: bytes | bytearray, at: int) -> int:
    """Return where the next frame begins, after EOLs and NULs: some clients end a frame with both, or with two."""
    found = _BETWEEN_FRAMES.match(buffer, at)
    return at if found is None else found.end()


_EMPTY_LINE = re.compile(rb"\n\r?\n")


def _empty_line(buffer: bytes | bytearray, search: int, most: int) -> tuple[int, int]:
    """Return where headers end and the body begins, searching up to `most`; -1 twice if that has not arrived yet."""
    found = _EMPTY_LINE.search(buffer, search, most)
    return (-1, -1) if found is None else found.span()


def _check_head(buffer: bytes | bytearray, at: int, end: int, search: int, *, is_whole: bool) -> None:
    """Check the bounds of a head, complete or not, and what can be wrong with an incomplete one."""
    if end - at > HEAD_BYTES_MAX:
        raise StompFault("headers too large", f"command and headers have more than {HEAD_BYTES_MAX} bytes")
    if buffer.find(b"\0", search, end) >= 0:
        raise StompFault("malformed frame received", "NUL before the empty line that ends the headers")
    if not is_whole and at < end:
        _check_command(bytes(buffer[at : min(end, at + COMMAND_BYTES_MAX + 2)]))


def _check_command(beginning: bytes) -> None:
    """Raise if the beginning of a head cannot become a command, without waiting for the rest."""
    line, newline, _ = beginning.partition(b"\n")
    if newline:
        wrong = line.removesuffix(b"\r").decode("utf-8", "replace") not in COMMANDS
    else:
        wrong = len(line) > COMMAND_BYTES_MAX or (not line.rstrip(b"\r").isalpha() and line != b"\r")
    if wrong:
        raise _bad_command(line.decode("utf-8", "replace"))


def _bad_command(command: str) -> StompFault:
    return StompFault("Bad command", f"Could not interpret command {quoted(command[: COMMAND_BYTES_MAX + 1])}\n")


def shown(text: str) -> str:
    """Return text of a client for an error message: shortened, and in one line."""
    return repr(text[:120])[1:-1]


def quoted(text: str) -> str:
    """Return text of a client for an error message, shortened and in quotes."""
    return f'"{shown(text)}"'


def _too_large(size: int, most: int) -> StompFault:
    return StompFault("frame too large", f"a body of {size} bytes; at most {most} are allowed")


def _content_length(text: str, most: int) -> int:
    given = text.strip()
    if not (given.isascii() and given.isdecimal()):
        raise StompFault("malformed frame received", f"content-length is {text[:40]!r}; allowed: bytes, in digits")
    if len(given) > 18 or int(given) > most:
        raise StompFault("frame too large", f"content-length is {given[:40]}; at most {most} bytes are allowed")
    return int(given)


# ---------------------------------------------------------------------------------------------------------------- heads


def parse_head(raw: bytes, version: str) -> Head:
    """Return command and headers of the bytes before the empty line."""
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError as fault:
        raise StompFault("malformed frame received", f"the headers are not UTF-8 ({fault.reason})") from None
    if lines[0].endswith("\r"):
        lines = [line.removesuffix("\r") for line in lines]
    command = lines[0]
    if command not in COMMANDS:
        raise _bad_command(command)
    if len(lines) - 1 > HEADERS_MAX:
        raise StompFault("too many headers", f"{command} has {len(lines) - 1}; at most {HEADERS_MAX} are allowed")
    headers: dict[str, str] = {}
    escaped = version != V10 and command not in UNESCAPED
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise StompFault("malformed frame received", f"{line[:80]!r} is not a header: name, colon, value")
        if escaped:
            if "\\" in line:
                name, value = _unescaped(name, version), _unescaped(value, version)
        elif version == V10 and command not in UNESCAPED:
            value = value.lstrip(" ")
        headers.setdefault(name, value)
    return Head(command, headers)


_ESCAPES = {V11: {"n": "\n", "c": ":", "\\": "\\"}}
_ESCAPES[V12] = {**_ESCAPES[V11], "r": "\r"}


_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


def _unescaped(text: str, version: str) -> str:
    known = _ESCAPES[version]

    def meant(found: re.Match[str]) -> str:
        if found[1] in known:
            return known[found[1]]
        allowed = " ".join(f"\\{each}" for each in known)
        raise StompFault(
            "malformed frame received", f"undefined escape {found[0]} in {text[:80]!r}; STOMP {version} has {allowed}"
        )

    return _ESCAPE.sub(meant, text)


# -------------------------------------------------------------------------------------------------------------- writing

_TO_ESCAPE = {
    V10: str.maketrans({"\n": " ", "\r": " ", "\0": " "}),
    V11: str.maketrans({"\n": "\\n", ":": "\\c", "\\": "\\\\", "\0": " "}),
    V12: str.maketrans({"\n": "\\n", ":": "\\c", "\\": "\\\\", "\r": "\\r", "\0": " "}),
}
"""By version. A character that a version cannot escape becomes a space."""


def header(name: str, value: str, version: str) -> bytes:
    """Return one line of a header."""
    table = _TO_ESCAPE[version]
    if version == V10:
        name = name.replace(":", " ")
    line = f"{name.translate(table)}:{value.translate(table)}\n"
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


def frame(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"", *, version: str) -> bytes:
    """Return a frame to a client."""
    lines = b"".join(header(name, value, version) for name, value in headers)
    length = b"content-length:%d\n" % len(body) if body else b""
    return b"%s\n%s%s\n%s\0" % (command.encode(), lines, length, body)


def connected(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a CONNECTED frame, the only one whose headers are not escaped."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers)
    return b"CONNECTED\n%s\n\0" % lines.encode()


def receipt(receipt_id: str, version: str) -> bytes:
    """Return a RECEIPT frame."""
    return frame("RECEIPT", (("receipt-id", receipt_id),), version=version)


HEART_BEAT = b"\n"
