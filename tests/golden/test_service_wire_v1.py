"""Frames of services of version 1 always decode to the same values, and values always encode to the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.service_wire_v1 import CONTEXT, FILE, FRAMES
from wherry.wire.native.codec import invokes
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.invokes import SERVICE_RULES, CallKind
from wherry.wire.native.codec.reader import FrameReader

LINES = dict(line.split(" ") for line in FILE.read_text(encoding="utf-8").splitlines())
PAGE = Path(__file__).parents[2] / "docs" / "wire.md"


def test_there_is_a_frame_of_each_kind_of_the_protocol():
    read = [FrameReader(frame.side, rules=SERVICE_RULES).feed(frame.data)[0][0] for frame in FRAMES.values()]
    assert set(CallKind) <= set(read)
    assert list(LINES) == list(FRAMES)


@pytest.mark.parametrize("name", FRAMES)
def test_the_values_encode_to_the_bytes(name):
    assert FRAMES[name].data.hex() == LINES[name]


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_decodes_to_its_value(name):
    frame = FRAMES[name]
    ((kind, flags, _, body),) = FrameReader(frame.side, rules=SERVICE_RULES).feed(bytes.fromhex(LINES[name]))
    if kind == CallKind.INVOKE:
        asked = invokes.decode_invoke(body)
        assert asked == frame.value
        assert not asked.context or invokes.decode_context(asked.context) == CONTEXT
    elif kind == CallKind.SEEN:
        assert invokes.decode_seen(body) == frame.value
    elif kind == CallKind.RESULT:
        assert (invokes.decode_trouble(body) if flags & (Flag.REFUSED | Flag.FAILED) else body) == frame.value
    else:
        assert frame.value is None


def test_the_specification_shows_these_frames():
    shown = PAGE.read_text(encoding="utf-8").partition("## Services")[2]
    found = dict(re.findall(r"^`([\w-]+)`:\n\n```text\n([0-9a-f \n]+)```", shown, re.MULTILINE))
    assert {name: re.sub(r"\s", "", text) for name, text in found.items()} == LINES
