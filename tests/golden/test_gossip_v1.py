"""Packets and states of version 1 always decode to the same values, and values always encode to the same bytes."""

from __future__ import annotations

import pytest

from tests.golden.gossip_v1 import FILE, GOSSIP
from wherry.mesh.gossip.codec.packets import PacketKind
from wherry.mesh.gossip.codec.states import ExchangeStage

LINES = dict(line.split(" ") for line in FILE.read_text(encoding="utf-8").splitlines())


def test_there_is_a_line_for_each_kind_and_stage():
    assert list(LINES) == list(GOSSIP)
    assert len(GOSSIP) == len(PacketKind) + len(ExchangeStage)


@pytest.mark.parametrize("name", GOSSIP)
def test_the_bytes_decode_to_the_value(name):
    golden = GOSSIP[name]
    assert golden.decode(golden.seal.open(bytes.fromhex(LINES[name]))) == golden.value


@pytest.mark.parametrize("name", GOSSIP)
def test_the_value_encodes_to_the_bytes(name):
    golden = GOSSIP[name]
    assert golden.seal.seal(golden.body).hex() == LINES[name]
