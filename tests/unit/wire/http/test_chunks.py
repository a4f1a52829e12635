"""The chunked body: whole, byte by byte, with a tail, and broken in every way that two readers could differ on."""

import pytest

from wherry.wire.http.protocol.chunks import (
    CHUNKS_MAX,
    LINE_BYTES_MAX,
    TRAILERS_BYTES_MAX,
    BrokenChunks,
    Chunks,
)

WHOLE = b"5\r\nhello\r\n006 ;a=b\r\n world\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n"


def fed(data: bytes, step: int) -> tuple[Chunks, bytes]:
    """Feed the data in steps; return the body, and what was left behind its end."""
    chunks, waiting = Chunks(), b""
    for at in range(0, len(data), step):
        waiting += data[at : at + step]
        waiting = waiting[chunks.feed(memoryview(waiting)) :]
    return chunks, waiting


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("tail", [b"", b"GET / HTTP/1.1\r\n", b"\r\n"])
def test_a_body_ends_where_it_ends(step: int, tail: bytes):
    chunks, left = fed(WHOLE + tail, step)
    assert chunks.done
    assert bytes(chunks.payload) == b"hello world!"
    assert left == tail


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_short_body_is_not_done(cut: int):
    assert not fed(WHOLE[:cut], 1_000)[0].done


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5_0\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5;a=\x00\r\nhello\r\n",
        b"1" * 16 + b"\r\n",
        b"5" + b";" * LINE_BYTES_MAX + b"\r\n",
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\nSpace : x\r\n\r\n",
        b"0\r\n: x\r\n\r\n",
        b"0\r\nA: \x01\r\n\r\n",
        b"0\r\nA: x\nB: y\r\n\r\n",
        b"0\r\n" + b"A: x\r\n" * (TRAILERS_BYTES_MAX // 6 + 1),
        b"0\r\nA: " + b"x" * TRAILERS_BYTES_MAX,
        b"1\r\nx\r\n" * (CHUNKS_MAX + 1),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_what_is_broken_is_refused(data: bytes, step: int):
    if step == 1 and len(data) > 20_000:
        step = 1_000
    with pytest.raises(BrokenChunks):
        fed(data, step)


def test_a_size_is_known_before_its_bytes():
    chunks, _ = fed(b"5\r\nhello\r\nffffffff\r\n", 1_000)
    assert chunks.wanted == 5 + 0xFFFFFFFF
    assert len(chunks.payload) == 5
