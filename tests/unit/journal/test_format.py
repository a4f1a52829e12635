from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wherry.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    VERSION,
    Broken,
    FileHeader,
    FrameHeader,
    NoHeader,
    Unsupported,
    check_body,
    encode_file_header,
    encode_frame,
    frame_bytes,
    frame_offsets,
    parse_file_header,
    parse_header,
    parse_header_unseeded,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
SEED = 0x5EED


def whole(data: bytes, seed: int = SEED) -> bool:
    """Return whether `data` is one frame and nothing is wrong with it."""
    header = parse_header(data, 0, seed)
    return isinstance(header, FrameHeader) and check_body(header, pa.py_buffer(data[FRAME_HEADER_BYTES:])) is None


def test_headers_have_the_sizes_of_the_byte_tables() -> None:
    assert (FILE_HEADER_BYTES, FRAME_HEADER_BYTES, VERSION) == (64, 40, 1)
    assert [frame_bytes(n) for n in (0, 1, 8, 9)] == [40, 48, 48, 56]


def test_the_bytes_are_those_of_version_1() -> None:
    assert encode_file_header(FileHeader(1, 4096, SEED)).hex() == (
        "57484a46010000000100000000000000" + "0010000000000000ed5e000000000000" + 56 * "0" + "373cac05"
    )
    assert b"".join(encode_frame(2, 1, [b"a", b"bc"], SEED)).hex() == (
        "57484a31010000000200000000000000"
        + "010000000000000003000000b73f4b36"
        + "00000000691effbf"
        + "6162630000000000"
    )


@given(U64, U64, st.lists(st.binary(max_size=40)), U32)
def test_a_frame_comes_back(position: int, synced: int, parts: list[bytes], seed: int) -> None:
    views = [pa.py_buffer(part) if n % 3 else memoryview(part) for n, part in enumerate(parts)]
    data = b"".join(encode_frame(position, synced, views, seed))
    assert len(data) == frame_bytes(len(b"".join(parts)))
    header = parse_header(b"12345678" + data + b"tail", 8, seed)
    assert isinstance(header, FrameHeader)
    assert (header.position, header.synced, header.length) == (position, synced, len(b"".join(parts)))
    assert whole(data, seed)
    assert parse_header_unseeded(data, 0) == header


@given(U64, U64, U32)
def test_a_file_header_comes_back(first: int, size: int, seed: int) -> None:
    header = FileHeader(first, size, seed)
    assert parse_file_header(encode_file_header(header) + b"tail") == header


@pytest.mark.parametrize("body", [b"", b"a", b"12345678", b"some body of a few bytes"])
def test_every_single_bit_flip_in_a_frame_is_found(body: bytes) -> None:
    data = bytearray(b"".join(encode_frame(3, 2, [body], SEED)))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert not whole(bytes(data)), bit
        data[bit // 8] ^= 1 << bit % 8
    assert whole(bytes(data))


def test_every_single_bit_flip_in_a_file_header_is_found() -> None:
    data = bytearray(encode_file_header(FileHeader(9, 4096, SEED)))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert isinstance(parse_file_header(bytes(data)), Broken), bit
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("length", range(FRAME_HEADER_BYTES + 8))
def test_a_short_frame_is_a_value(length: int) -> None:
    data = b"".join(encode_frame(1, 0, [b"12345678"], SEED))[:length]
    header = parse_header(data, 0, SEED)
    if length < FRAME_HEADER_BYTES:
        assert header is NoHeader.SHORT
    else:
        assert isinstance(header, FrameHeader)
        assert isinstance(check_body(header, pa.py_buffer(data[FRAME_HEADER_BYTES:])), Broken)


def test_zeros_are_nothing_and_not_broken() -> None:
    assert parse_header(bytes(100), 8, SEED) is NoHeader.EMPTY
    assert parse_file_header(bytes(100)) is NoHeader.EMPTY
    assert parse_file_header(b"") is NoHeader.SHORT


def test_a_frame_of_another_file_is_broken() -> None:
    assert isinstance(parse_header(b"".join(encode_frame(1, 0, [b"x"], SEED)), 0, SEED + 1), Broken)


def test_a_later_version_differs_from_a_broken_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.journal.format.VERSION", 2)
    frame, head = b"".join(encode_frame(1, 0, [b"x"], SEED)), encode_file_header(FileHeader(1, 4096, SEED))
    monkeypatch.undo()
    assert parse_header(frame, 0, SEED) == parse_file_header(head) == Unsupported(2, 0)


@given(st.binary(max_size=200), st.integers(0, 250), U32)
@example(b"WHJ1" + bytes(36), 0, 0)
@example(b"WHJ1" + b"\xff" * 36, 0, 0)
def test_garbage_never_raises(data: bytes, offset: int, seed: int) -> None:
    parse_header(data, offset, seed)
    parse_header_unseeded(data, offset)
    parse_file_header(data)
    for at in frame_offsets(pa.py_buffer(data)):
        assert at % 8 == 0
        assert data[at : at + 4] == b"WHJ1"


@given(U64, U64, U32, U32, st.binary(max_size=64))
def test_a_header_with_any_length_never_raises(position: int, synced: int, length: int, crc: int, data: bytes) -> None:
    check_body(FrameHeader(position, synced, length, crc), pa.py_buffer(data))
