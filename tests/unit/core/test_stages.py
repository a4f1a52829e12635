"""What the state keeps of commits, and how many bytes open stages hold; a restart gives the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.desk import Desk
from wherry.core.decide import staging
from wherry.core.state import stages
from wherry.core.state.stages import OpenStage, StagedBatch, Stages
from wherry.model.schema import compact

QUERY = "0c6a1f0e-5a0e-4c57-9f0e-0123456789ab"
OTHER = "0c6a1f0e-5a0e-4c57-9f0e-0123456789ac"
PLACED = np.array([1, 0, 0, 1], np.int64)


def stage(desk: Desk, key: str, *payloads: bytes) -> None:
    batch = compact(list(payloads))
    desk.commit(staging.stage_publish(desk.shell.state, key, desk.topic, batch, None, desk.now.wall_us))


def commit(desk: Desk, key: str, *keys: str) -> None:
    entries, _ = staging.commit(desk.shell.state, key, desk.now.wall_us, keys or None)
    desk.commit(entries)


def summed(desk: Desk) -> int:
    return sum(part.bytes for each in desk.shell.state.stages.open.values() for part in each.parts)


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_a_query_pushes_out_its_own_batches_only(monkeypatch, by):
    monkeypatch.setattr(stages, "BATCHES_MAX", 3)
    desk = Desk()
    for number in range(6):
        for key in (f"spark/{QUERY}/{number}", f"ann:spark/{QUERY}/{number}", f"spark/daily/{number}", f"job/{number}"):
            stage(desk, key, b"x")
            commit(desk, key)
    known = list(desk.shell.state.stages.committed)
    assert [key for key in known if QUERY in key] == [
        f"{user}spark/{QUERY}/{number}" for number in (3, 4, 5) for user in ("", "ann:")
    ]
    assert [key for key in known if QUERY not in key] == [
        f"{kind}/{number}" for number in range(6) for kind in ("spark/daily", "job")
    ], "names that people chose are kept as ever"
    desk.recover(by)
    assert list(desk.shell.state.stages.committed) == known
    stage(desk, f"spark/{QUERY}/6", b"x")
    commit(desk, f"spark/{QUERY}/6")
    assert f"spark/{QUERY}/3" not in desk.shell.state.stages.committed
    assert f"ann:spark/{QUERY}/3" in desk.shell.state.stages.committed


def test_a_thousand_hours_of_a_query_leave_a_commit_key_alone():
    known = Stages()
    known.remember("spark/mine", PLACED)
    for number in range(stages.COMMITTED_MAX + 10):
        known.remember(f"spark/{QUERY}/{number}", PLACED)
    assert "spark/mine" in known.committed
    assert len(known.committed) == 1 + stages.BATCHES_MAX


def test_the_oldest_of_all_is_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(stages, "COMMITTED_MAX", 4)
    known = Stages()
    for key in (f"spark/{QUERY}/0", "a", f"spark/{OTHER}/0", "b", f"spark/{QUERY}/1", "c", "d", "e"):
        known.remember(key, PLACED)
    assert list(known.committed) == [f"spark/{QUERY}/1", "c", "d", "e"]
    again = Stages()
    again.committed = known.committed
    for each in (known, again):
        each.remember(f"spark/{QUERY}/2", PLACED)
        each.remember("f", PLACED)
    assert list(known.committed) == list(again.committed) == ["d", "e", f"spark/{QUERY}/2", "f"]


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_bytes_of_open_stages_are_those_of_their_parts(by):
    desk = Desk(partitions=2)
    stage(desk, "one", b"x" * 10, b"y" * 5)
    stage(desk, "one", b"z" * 7)
    stage(desk, "two", b"x" * 3)
    stage(desk, "three", b"x" * 100)
    assert desk.shell.state.stages.bytes() == summed(desk) == 125
    desk.commit(staging.abort(desk.shell.state, "three", desk.now.wall_us))
    assert desk.shell.state.stages.bytes() == summed(desk) == 25
    desk.recover(by)
    assert desk.shell.state.stages.bytes() == summed(desk) == 25
    stage(desk, "two", b"more")
    assert desk.shell.state.stages.bytes() == summed(desk)
    commit(desk, "both", "one", "two")
    assert desk.shell.state.stages.bytes() == 0


def test_bytes_are_not_summed_up_for_each_batch():
    """Ask with 10,000 stages of 100 parts: that costs the same as with none."""
    known, looks = Stages(), list[int]()

    class Looked(StagedBatch):
        @property
        def bytes(self) -> int:
            looks.append(1)
            return 7

    known.open["s"] = OpenStage("s", 0, [Looked(1, 0, 1, 0, 7, None) for _ in range(100)])
    once = len(looks)
    assert [known.bytes() for _ in range(50)] == [700] * 50
    assert len(looks) == once
    known.open["s"] = OpenStage("s", 0)
    assert known.bytes() == 0, "another one in its place"
