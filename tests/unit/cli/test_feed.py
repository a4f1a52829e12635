"""Messages out of lines: which lines are taken, and how a bad line is reported."""

import asyncio
import io
import sys
from types import SimpleNamespace

import pytest

from wherry.cli import feed
from wherry.model.errors import InvalidInput


async def gathered(texts, sources, **how):
    found = feed.messages(texts, sources, lambda size: None, **{"ndjson": False, "entire": False} | how)
    return [message async for message in found]


def read(*sources, texts=(), **how):
    return asyncio.run(gathered(list(texts), list(sources), **how))


def test_a_line_of_json_is_a_message():
    line = b'{"payload": "hi", "key": "ann", "priority": 3, "due_ms": 5, "headers": {"a": "1"}, "id": "x"}'
    fields = {"id": "x", "key": "ann", "priority": 3, "due_ms": 5, "headers": {"a": "1"}}
    assert feed.read_line(line, "line 1") == (b"hi", fields)


@pytest.mark.parametrize(
    ("line", "payload"),
    [
        (b'{"payload": "caf\\u00e9"}', "café".encode()),
        (b'{"payload": {"n": 1.10, "l": [1, 2]}}', b'{"n":1.10,"l":[1,2]}'),
        (b'{"payload": null}', b"null"),
        (b'{"payload_base64": "/wA="}', b"\xff\x00"),
    ],
)
def test_a_payload_is_text_json_or_bytes(line, payload):
    assert feed.read_line(line, "line 1").payload == payload


@pytest.mark.parametrize(
    "line",
    [b"hello", b"{}", b"[]", b'{"payload": "a", "prio": 1}', b'{"payload": "a", "payload_base64": ""}',
     b'{"payload_base64": "?"}', b'{"payload": "a", "priority": "high"}', b'{"payload": "\xff"}'],
)  # fmt: skip
def test_a_bad_line_is_reported_with_its_place(line):
    with pytest.raises(InvalidInput, match=r"jobs\.ndjson line 7: got .* allowed: a message such as"):
        feed.read_line(line, "jobs.ndjson line 7")


def test_lines_of_a_file_however_they_end(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\ntwo\n\nthree")
    assert [each.payload for each in read(str(file), texts=["zero"])] == [b"zero", b"one", b"two", b"three"]


def test_lines_are_whole_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "BLOCK_BYTES", 3)
    file = tmp_path / "lines"
    file.write_bytes(b"abcdef\ngh\ni\n")
    assert [each.payload for each in read(str(file))] == [b"abcdef", b"gh", b"i"]


def test_a_whole_file_is_one_message(tmp_path):
    file = tmp_path / "bytes"
    file.write_bytes(b"a\n\xff\n")
    assert read(str(file), entire=True) == [(b"a\n\xff\n", {})]


def test_stdin_without_a_descriptor_is_read_too(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"payload": 1}\n{"payload": 2}\n')))
    assert [each.payload for each in read(feed.STDIN, ndjson=True)] == [b"1", b"2"]


def test_what_is_too_long_or_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "LINE_BYTES_MAX", 10)
    file = tmp_path / "long"
    file.write_bytes(b"x" * 11)
    with pytest.raises(InvalidInput, match="at most 10 bytes"):
        read(str(file))
    with pytest.raises(InvalidInput, match="1 MiB"):
        read(str(file), entire=True)
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path / "nowhere"))
