"""Reasons and errors: full is not for ever, and one topic does not take the words from another."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.desk import Desk
from wherry.core.index.table import OffsetTable
from wherry.core.state import texts
from wherry.core.state.state import State
from wherry.core.state.texts import Texts


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "TEXTS_MAX", 32)


def fail(desk: Desk, error: str, name: str = "s") -> None:
    desk.publish("m")
    [lease] = desk.pull(name, 1)
    desk.nack(lease, error)


def errors(state: State) -> list[str]:
    used = [
        state.texts.texts[n] for t in state.topics.values() for table in t.text_tables() for n in table.values("error")
    ]
    return sorted(set(used) - {""})


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_texts_of_what_is_gone_make_room(by: str) -> None:
    desk = Desk()
    desk.subscribe()
    for number in range(100):
        fail(desk, f"failed at {number}")
        if number % 2 == 0:
            desk.discard()
        if number % 7 == 0:
            desk.recover(by)
    desk.discard()
    fail(desk, "card declined")
    desk.recover(by)
    assert errors(desk.shell.state) == ["card declined"]
    assert len(desk.shell.state.texts.texts) <= 32


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_when_all_are_in_use_the_newest_keep_their_error_and_all_keep_their_reason(by: str) -> None:
    desk = Desk()
    desk.subscribe()
    for number in range(100):
        fail(desk, f"failed at {number:02}")
        if number == 60:
            desk.recover(by)
    state = desk.shell.state
    kept = errors(state)
    assert kept[-1] == "failed at 99"
    assert "failed at 00" not in kept
    assert len(kept) >= 24, "the table is not thrown away whole"
    [table] = desk.topic.text_tables()
    assert {state.texts.texts[number] for number in table.values("reason")} == {"1 failed deliveries"}
    desk.recover(by)


def test_one_topic_takes_no_words_from_another() -> None:
    known = Texts()
    noisy, calm = OffsetTable(("reason", "error")), OffsetTable(("reason", "error"))
    put(calm, known, 0, "fraud", "no such account")
    for number in range(200):
        if not known.has_room():
            known.sweep([[noisy], [calm]])
        put(noisy, known, number, "attempts", f"failed at {number}")
    assert reasons_and_errors(calm, known) == [("fraud", "no such account")]
    assert reasons_and_errors(noisy, known)[-1] == ("attempts", "failed at 199")
    assert reasons_and_errors(noisy, known)[0] == ("attempts", known.texts[texts.LOST])
    assert len(known.texts) <= 32


def test_what_is_known_keeps_its_meaning_over_a_sweep() -> None:
    known = Texts()
    table = OffsetTable(("reason", "error"))
    for number in range(12):
        put(table, known, number, "why", f"error {number}")
    table.remove(np.arange(0, 12, 2))
    before = reasons_and_errors(table, known)
    old = known.texts
    known.sweep([[table]])
    assert reasons_and_errors(table, known) == before
    assert old[3] == "error 0", "a reader of the list of before still can"
    assert known.number("error 1") == known.texts.index("error 1")


def put(table: OffsetTable, known: Texts, offset: int, reason: str, error: str) -> None:
    table.put(np.array([offset], np.int64), reason=known.number(reason), error=known.number(error))


def reasons_and_errors(table: OffsetTable, known: Texts) -> list[tuple[str, str]]:
    _, reasons, errors = table.columns().tolist()
    return [(known.texts[a], known.texts[b]) for a, b in zip(reasons, errors, strict=True)]
