"""Celery: in which order tasks run, and what becomes of them when their worker dies."""

import pytest

from tests.frameworks.programs import Failed, wait_until

ONE = ("--pool", "solo", "--prefetch-multiplier", "1", "--without-mingle", "--without-gossip")
PREFORK = ("--pool", "prefork", "--concurrency", "1", "--without-mingle", "--without-gossip")


@pytest.mark.rows("D3", "Q12")
def test_the_most_urgent_runs_first(celery):
    celery.set(task_queue_max_priority=9, task_acks_late=True)
    celery.run("""
        waiting = [written.apply_async([f"{priority}{name}"], priority=priority)
                   for name in "ab" for priority in (0, 3, 9, 5)]
    """)
    celery.worker(*ONE)
    celery.run("[each.get(timeout=30) for each in waiting]")
    assert celery.notes() == ["9a", "9b", "5a", "5b", "3a", "3b", "0a", "0b"]


def test_a_task_without_a_priority_has_the_default(celery):
    celery.set(task_queue_max_priority=10, task_default_priority=4, task_acks_late=True)
    celery.run("""
        waiting = [written.apply_async([name], **more)
                   for name, more in (("low", {"priority": 3}), ("usual", {}), ("high", {"priority": 5}))]
    """)
    celery.worker(*ONE)
    celery.run("[each.get(timeout=30) for each in waiting]")
    assert celery.notes() == ["high", "usual", "low"]


def test_a_late_acked_task_runs_again_when_its_worker_was_killed(celery):
    first = celery.worker(*ONE)
    celery.run("result = blocked_late.delay('job')")
    wait_until(lambda: celery.notes() == ["began job False"])
    first.kill()
    celery.worker(*ONE)
    wait_until(lambda: celery.notes() == ["began job False", "began job True"])
    celery.allow("job")
    assert celery.run("result.get(timeout=30)") == "job done"
    assert celery.notes() == ["began job False", "began job True", "ended job"]


def test_what_a_killed_worker_had_fetched_runs_elsewhere(celery):
    celery.set(task_acks_late=True)
    first = celery.worker("--pool", "threads", "--concurrency", "1", "--prefetch-multiplier", "4")
    celery.run("held = blocked_late.delay('first'); rest = [written.delay(n) for n in range(3)]")
    wait_until(lambda: celery.notes() == ["began first False"])
    wait_until(lambda: first.output().count("written[") == 3, first.output)
    first.kill()
    celery.allow("first")
    celery.worker()
    assert celery.run("[each.get(timeout=30) for each in [held, *rest]]") == ["first done", 0, 1, 2]


def test_an_early_acked_task_does_not_run_again(celery):
    first = celery.worker(*PREFORK)
    celery.run("blocked.delay('job')")
    wait_until(lambda: celery.notes() == ["began job False"])
    first.kill()
    celery.worker()
    assert celery.run("written.delay('next').get(timeout=30)") == "next"
    assert celery.notes() == ["began job False", "next"]


def test_a_task_whose_process_was_lost_is_put_back(celery):
    celery.worker(*PREFORK)
    assert celery.run("deadly.delay().get(timeout=30)") == "survived"
    assert celery.notes() == ["deadly False", "deadly True"]


def test_a_task_that_takes_too_long_gets_an_error_and_is_then_ended(celery):
    celery.worker(*PREFORK)
    assert celery.run("patient.delay().get(timeout=30)") == "cleaned up"
    with pytest.raises(Failed, match="TimeLimitExceeded"):
        celery.run("deaf.delay().get(timeout=30)")
    assert celery.run("add.delay(1, 1).get(timeout=30)") == 2, "the worker continues"


def test_a_rate_limit_holds(celery):
    celery.worker("--pool", "threads", "--concurrency", "2")
    times = sorted(celery.run("[each.get(timeout=30) for each in [at_times.delay() for _ in range(6)]]"))
    assert times[-1] - times[0] >= 5 / 4 - 0.1, "six in a row at four a second; clocks may differ a little"


def test_queues_by_name_are_separate(celery):
    celery.worker("--pool", "solo", "--queues", f"{celery.queue}-a", "--without-mingle", "--without-gossip")
    celery.run(f"""
        other = add.apply_async((1, 1), queue="{celery.queue}-b")
        mine = add.apply_async((2, 2), queue="{celery.queue}-a")
    """)
    assert celery.run("[mine.get(timeout=30), other.ready()]") == [4, False]
    celery.worker("--pool", "solo", "--queues", f"{celery.queue}-b", "--without-mingle", "--without-gossip")
    assert celery.run("other.get(timeout=30)") == 2


def test_a_purge_forgets_what_waits(celery):
    celery.run("[written.delay(n) for n in range(5)]")
    assert celery.run("app.control.purge()") == 5
    celery.worker(*ONE)
    celery.run("written.delay('after').get(timeout=30)")
    assert celery.notes() == ["after"]
