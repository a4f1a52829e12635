"""When kept calls are sent again."""

from __future__ import annotations

import pytest

from wherry.service.lost.schedule import PAUSE_S, PAUSE_S_MAX, SPREAD_S, Schedule


def there(service):
    return True


def gone(service):
    return False


def test_pauses_grow_up_to_a_bound_and_never_end():
    schedule, now, pauses = Schedule(), 0.0, []
    schedule.add("c", "billing", now, 1.0)
    for _ in range(40):
        at = schedule.next_at(there)
        assert at is not None
        pauses.append(at - now)
        assert schedule.due(at - 0.001, there, 8) == []
        assert schedule.due(at, there, 8) == ["c"]
        now = at
        schedule.failed("c", now, 1.0)
    assert pauses == pytest.approx([min(PAUSE_S_MAX, PAUSE_S * 2**at) for at in range(40)])


def test_chance_spreads_the_pauses():
    schedule = Schedule()
    for at in range(5):
        schedule.add(f"c{at}", "billing", 0.0, at / 5)
    assert schedule.due(PAUSE_S, there, 8) == ["c0", "c1", "c2", "c3", "c4"]
    assert schedule.due(PAUSE_S * 0.75, there, 8) == ["c0", "c1", "c2"]
    assert schedule.due(PAUSE_S, there, 2) == ["c0", "c1"]


@pytest.mark.rows("P16")
def test_nothing_is_due_while_the_service_is_gone():
    schedule = Schedule()
    schedule.add("c", "billing", 0.0, 0.5)
    assert schedule.due(1e9, gone, 8) == []
    assert schedule.next_at(gone) is None


@pytest.mark.rows("P16")
def test_calls_are_due_soon_when_their_service_comes_back():
    schedule = Schedule()
    schedule.add("c", "billing", 0.0, 0.5)
    schedule.add("d", "mail", 0.0, 0.5)
    for _ in range(10):
        schedule.failed("c", 0.0, 0.5)
        schedule.failed("d", 0.0, 0.5)
    schedule.came("billing", 50.0, 0.5)
    assert schedule.due(50.0 + SPREAD_S, there, 8) == ["c"]
    schedule.failed("c", 51.0, 0.5)
    schedule.came("billing", 51.0, 0.0)
    assert schedule.due(51.0 + PAUSE_S - 0.01, there, 8) == [], "a service that comes and goes gets no flood"
    assert schedule.due(51.0 + PAUSE_S, there, 8) == ["c"]


def test_a_call_that_is_done_is_forgotten():
    schedule = Schedule()
    schedule.add("c", "billing", 0.0, 0.5)
    schedule.add("c", "billing", 100.0, 0.5)
    assert schedule.due(1.0, there, 8) == ["c"], "the same call again waits no longer for it"
    schedule.remove("c")
    schedule.remove("c")
    schedule.failed("c", 1.0, 0.5)
    assert len(schedule) == 0
    assert "c" not in schedule


def test_a_call_under_way_is_not_due_until_it_failed():
    schedule = Schedule()
    schedule.add("c", "billing", 0.0, 0.0)
    schedule.begin("c")
    schedule.came("billing", 100.0, 0.0)
    assert schedule.due(1_000.0, there, 8) == []
    assert schedule.next_at(there) is None
    schedule.failed("c", 1_000.0, 1.0)
    assert schedule.next_at(there) == 1_000.0 + 2 * PAUSE_S
