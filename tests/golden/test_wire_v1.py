"""Frames of version 1 always decode to the same values, and values always encode to the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.wire_v1 import FILE, FRAMES
from wherry.wire.native.codec.frames import Kind
from wherry.wire.native.codec.reader import FrameReader

LINES = dict(line.split(" ") for line in FILE.read_text(encoding="utf-8").splitlines())
PAGE = Path(__file__).parents[2] / "docs" / "wire.md"


def test_there_is_a_frame_of_each_kind():
    assert {frame.header[0] for frame in FRAMES.values()} == set(Kind)
    assert list(LINES) == list(FRAMES)


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_decodes_to_its_values(name):
    frame, data = FRAMES[name], bytes.fromhex(LINES[name])
    ((kind, flags, number, body),) = FrameReader(frame.side).feed(data)
    assert (kind, flags, number) == frame.header
    assert frame.decode(body) == frame.value


@pytest.mark.parametrize("name", FRAMES)
def test_the_values_encode_to_the_bytes(name):
    assert FRAMES[name].data.hex() == LINES[name]


def test_the_specification_shows_these_frames():
    shown = PAGE.read_text(encoding="utf-8")
    found = dict(re.findall(r"^\*\*`([\w-]+)`\*\*.*\n\n```text\n([0-9a-f \n]+)```", shown, re.M))
    assert {name: re.sub(r"\s", "", text) for name, text in found.items()} == LINES
