"""Frames, whole, byte by byte, and with the next one behind."""

from __future__ import annotations

from itertools import product

import pytest

from wherry.wire.stomp import codec
from wherry.wire.stomp.codec import BODY_BYTES_MAX, HEAD_BYTES_MAX, HEADERS_MAX, Frame, FrameReader, StompFault

CASES = [
    ("1.0", b"CONNECT\n\n\0", ("CONNECT", {}, b"")),
    ("1.0", b"SEND\ndestination:/queue/a\n\nhello\0", ("SEND", {"destination": "/queue/a"}, b"hello")),
    ("1.0", b"SEND\ndestination: /queue/a\n\n\0", ("SEND", {"destination": "/queue/a"}, b"")),
    ("1.0", b"SEND\na:b\\nc\n\n\0", ("SEND", {"a": "b\\nc"}, b"")),
    ("1.1", b"SEND\na: b\n\n\0", ("SEND", {"a": " b"}, b"")),
    ("1.1", b"SEND\na\\cb:x\\\\n\\n\n\n\0", ("SEND", {"a:b": "x\\n\n"}, b"")),
    ("1.2", b"SEND\na:\\r\\n\\c\\\\\n\n\0", ("SEND", {"a": "\r\n:\\"}, b"")),
    ("1.2", b"SEND\na:b:c\n\n\0", ("SEND", {"a": "b:c"}, b"")),
    ("1.2", b"SEND\na:1\na:2\n\n\0", ("SEND", {"a": "1"}, b"")),
    ("1.2", b"SEND\na:\n\n\0", ("SEND", {"a": ""}, b"")),
    ("1.2", b"SEND\r\na:b\r\n\r\nx\r\n\0", ("SEND", {"a": "b"}, b"x\r\n")),
    ("1.2", b"\n\r\n\nBEGIN\ntransaction:1\n\n\0", ("BEGIN", {"transaction": "1"}, b"")),
    ("1.2", b"SEND\ncontent-length:5\n\na\0\0b\0\0", ("SEND", {"content-length": "5"}, b"a\0\0b\0")),
    ("1.2", b"SEND\ncontent-length:0\n\n\0", ("SEND", {"content-length": "0"}, b"")),
    ("1.2", "SEND\nä:ö\n\nü\0".encode(), ("SEND", {"ä": "ö"}, "ü".encode())),
    ("1.2", b"STOMP\npasscode:a\\b\n\n\0", ("STOMP", {"passcode": "a\\b"}, b"")),
    ("1.2", b"SEND\n\n\n\n\0", ("SEND", {}, b"\n\n")),
]

FAULTS = [
    ("1.2", b"SEND\na:\\t\n\n\0", "undefined escape"),
    ("1.1", b"SEND\na:\\r\n\n\0", "undefined escape"),
    ("1.2", b"SEND\na:b\\\n\n\0", "undefined escape"),
    ("1.2", b"SEND\nabc\n\n\0", "is not a header"),
    ("1.2", b"SEND\n:abc\n\n\0", "is not a header"),
    ("1.2", b"SHOUT\n\n\0", 'command "SHOUT"'),
    ("1.2", b"send\n\n\0", 'command "send"'),
    ("1.0", b"GET / HTTP/1.1\r\n", "Could not interpret"),
    ("1.0", b"\x16\x03\x01\x02\x01\x01", "Could not interpret"),
    ("1.2", b"SEND\na:b\0", "NUL before"),
    ("1.2", b"SEND\na:\xff\n\n\0", "not UTF-8"),
    ("1.2", b"SEND\ncontent-length:2\n\nabc\0", "does not end with NUL"),
    ("1.2", b"SEND\ncontent-length:-1\n\n\0", "content-length"),
    ("1.2", b"SEND\ncontent-length:1e3\n\n\0", "content-length"),
]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def read(version: str, parts: list[bytes]) -> tuple[list[Frame | StompFault], FrameReader]:
    reader = FrameReader()
    reader.version = version
    found: list[Frame | StompFault] = []
    for part in parts:
        found += reader.feed(part)
    return found, reader


def shown(found: list[Frame | StompFault]) -> list[object]:
    return [(each.command, each.headers, each.body) if isinstance(each, Frame) else str(each) for each in found]


@pytest.mark.parametrize(("version", "data", "meant"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_a_frame_is_the_same_in_any_pieces(version, data, meant, size):
    found, reader = read(version, pieces(data, size))
    assert shown(found) == [meant]
    assert reader.partial_bytes == 0


@pytest.mark.parametrize(("version", "data", "meant"), CASES)
@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_a_frame_ends_where_the_next_begins(version, data, meant, size):
    tail = b"\nSEND\nx:y\n\nz"
    found, reader = read(version, pieces(data + data + tail, size))
    assert shown(found) == [meant, meant]
    assert len(tail) - 1 <= reader.partial_bytes <= len(tail)
    assert shown(list(reader.feed(b"\0"))) == [("SEND", {"x": "y"}, b"z")]


@pytest.mark.parametrize(("version", "data", "why"), FAULTS)
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_a_broken_rule_is_reported_and_ends_the_session(version, data, why, size):
    good = b"SEND\n\nfine\0"
    found, reader = read(version, pieces(good + data + good, size))
    assert shown(found[:1]) == [("SEND", {}, b"fine")]
    assert isinstance(found[1], StompFault)
    assert why in str(found[1])
    assert len(found) == 2
    assert list(reader.feed(good)) == []
    assert reader.partial_bytes == 0


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("size", [1 << 30, 10 * 10**9, 10**30])
def test_a_body_that_is_too_large_is_refused_when_it_is_announced(size):
    found, reader = read("1.2", [f"SEND\ncontent-length:{size}\n\n".encode()])
    assert "at most" in str(found[0])
    assert reader.partial_bytes == 0


@pytest.mark.rows("Q2")
def test_a_body_without_a_length_is_refused_at_its_bound():
    reader = FrameReader()
    found: list[Frame | StompFault] = []
    fed = 0
    for part in (b"SEND\n\n", *([b"x" * (1 << 20)] * 64)):
        fed += len(part)
        found += reader.feed(part)
        if found:
            break
    assert isinstance(found[0], StompFault)
    assert BODY_BYTES_MAX < fed <= BODY_BYTES_MAX + (2 << 20)


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("line", [b"a:b\n", b"a" * 4096, b"n:" + b"v" * 1000 + b"\n"])
def test_headers_without_an_end_are_refused_at_their_bound(line):
    reader = FrameReader()
    fed = len(b"SEND\n")
    found = list(reader.feed(b"SEND\n"))
    while not found:
        assert fed < 2 * HEAD_BYTES_MAX
        found += reader.feed(line)
        fed += len(line)
    assert isinstance(found[0], StompFault)


@pytest.mark.rows("Q2")
def test_headers_are_counted():
    def read_with(count: int) -> object:
        lines = b"".join(b"h%d:v\n" % number for number in range(count))
        return shown(read("1.2", [b"SEND\n" + lines + b"\n\0"])[0])[0]

    assert isinstance(read_with(HEADERS_MAX), tuple)
    assert "too many headers" in str(read_with(HEADERS_MAX + 1))


def test_the_version_counts_from_the_next_frame_on():
    reader = FrameReader()
    found = []
    for each in reader.feed(b"CONNECT\naccept-version:1.2\n\n\0SEND\na:\\c\n\n\0"):
        reader.version = "1.2"
        found.append(each)
    assert shown(found)[1] == ("SEND", {"a": ":"}, b"")


def test_heads_that_come_again_are_parsed_once():
    found, _ = read("1.2", [b"SEND\na:b\n\n1\0SEND\na:b\n\n2\0"])
    first, second = found
    assert isinstance(first, Frame)
    assert isinstance(second, Frame)
    assert first.head is second.head


@pytest.mark.parametrize("version", codec.VERSIONS)
@pytest.mark.parametrize("text", ["plain", "a:b", "back\\slash", "new\nline", "ret\rurn", "ü", "\\n"])
def test_what_is_written_is_read_again(version, text):
    data = codec.frame("MESSAGE", [("n:1", text)], b"body", version=version).replace(b"MESSAGE", b"SEND", 1)
    (found,) = read(version, [data])[0]
    assert isinstance(found, Frame)
    assert (found.command, found.body) == ("SEND", b"body")
    if version == "1.0":  # 1.0 has no escapes: a character that would break the frame is written as a space
        assert found.headers["n 1"] == text.replace("\n", " ").replace("\r", " ").lstrip(" ")
    else:
        assert found.headers["n:1"] == text


def naive_after_eols(buffer: bytes, at: int) -> int:
    """Go byte by byte, as the rule is written: LF, or CR LF."""
    while buffer[at : at + 1] == b"\n" or buffer[at : at + 2] == b"\r\n":
        at += 1 if buffer[at : at + 1] == b"\n" else 2
    return at


@pytest.mark.parametrize("size", range(7))
def test_eols_between_frames_end_where_the_rule_ends_them(size):
    for letters in product((b"\r", b"\n", b"S"), repeat=size):
        buffer = b"".join(letters)
        for at in range(size + 1):
            assert codec._after_eols(buffer, at) == naive_after_eols(buffer, at), (buffer, at)
