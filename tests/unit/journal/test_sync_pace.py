"""Which thread makes small writes is decided by how long syncs took, where that can be measured."""

import pytest

from wherry.journal.disk import real_files
from wherry.journal.disk.real_files import PACE_SYNCS, QUICK_SYNC_S, TRY_EACH_S, SyncPace


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(real_files, "perf_counter", clock)
    return clock


def test_a_disk_is_taken_for_quick_until_it_was_slow(clock: Clock) -> None:
    pace = SyncPace()
    assert pace.is_quick()
    for _ in range(100):
        pace.note(QUICK_SYNC_S * 0.9)
        assert pace.is_quick()
    for _ in range(PACE_SYNCS):
        pace.note(QUICK_SYNC_S * 10)
    assert not pace.is_quick()


def test_one_outlier_is_soon_forgotten(clock: Clock) -> None:
    pace = SyncPace()
    pace.note(10.0)
    assert not pace.is_quick()
    for _ in range(2 * PACE_SYNCS):
        pace.note_in_thread(QUICK_SYNC_S / 4)
    assert pace.is_quick()


def test_what_the_thread_measures_never_makes_a_disk_slow(clock: Clock) -> None:
    pace = SyncPace()
    for _ in range(100):
        pace.note_in_thread(QUICK_SYNC_S * 100)
    assert pace.is_quick()


def test_a_disk_that_was_slow_is_tried_again_now_and_then(clock: Clock) -> None:
    pace = SyncPace()
    pace.note(1.0)
    assert not pace.is_quick()
    clock.now += TRY_EACH_S
    assert pace.is_quick()
    pace.note(1.0)
    assert not pace.is_quick()
