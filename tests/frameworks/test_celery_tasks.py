"""Celery: tasks, results, retries, times. One worker with two threads and all defaults serves this file."""

import pytest

from tests.frameworks.celery_apps import CeleryApp
from tests.frameworks.programs import Failed


@pytest.fixture(scope="module")
def celery(amqp_url, tmp_path_factory):
    with CeleryApp(amqp_url, tmp_path_factory.mktemp("celery")) as app:
        app.worker("--pool", "threads", "--concurrency", "2")
        yield app


def test_a_task_gives_its_result(celery):
    assert celery.run("add.delay(4, 4).get(timeout=30)") == 8
    assert celery.run("add.apply_async(kwargs={'x': 2, 'y': 3}).get(timeout=30)") == 5
    assert celery.run("app.send_task('celery_tasks.add', (1, 2)).get(timeout=30)") == 3


def test_arguments_and_results_larger_than_a_frame_come_whole(celery):
    found = celery.run("""
        large = "wörter " * 100_000
        echo.delay(large).get(timeout=30) == large
    """)
    assert found is True


def test_the_error_of_a_task_is_raised_where_its_result_is_wanted(celery):
    with pytest.raises(Failed, match="ValueError: no such thing"):
        celery.run("fail.delay('no such thing').get(timeout=30)")
    assert celery.run("fail.delay('x').get(timeout=30, propagate=False).args") == ["x"]


def test_the_state_of_a_task_is_reported(celery):
    assert celery.run("r = kept.delay(1); r.get(timeout=30); [r.state, r.successful(), r.ready()]") == [
        "SUCCESS",
        True,
        True,
    ]


def test_a_task_decides_by_itself_whether_its_result_is_kept(amqp_url, tmp_path):
    with CeleryApp(amqp_url, tmp_path, task_ignore_result=True) as app:
        app.worker()
        assert app.run("[kept.delay(n).get(timeout=30) for n in range(3)]") == [0, 1, 2]
        app.run("forgotten.delay(7)")
        assert app.run("kept.delay('after it').get(timeout=30)") == "after it"
        assert app.notes() == ["forgotten 7"]


def test_many_threads_wait_for_results_at_once(celery):
    found = celery.run("""
        with ThreadPoolExecutor(8) as threads:
            sums = list(threads.map(lambda n: add.delay(n, n).get(timeout=30), range(40)))
        sums
    """)
    assert found == [n + n for n in range(40)]


def test_a_task_is_tried_again_after_its_countdown(celery):
    tries, redelivered = celery.run("flaky.delay(2).get(timeout=30)")
    assert (tries, redelivered) == (2, False), "a retry is a message of its own"
    noted = [line.split() for line in celery.notes() if line.startswith("try")]
    assert [number for _, number, _ in noted] == ["0", "1", "2"]
    times = [float(at) for _, _, at in noted]
    assert times[1] - times[0] >= 0.5
    assert times[2] - times[1] >= 0.5


def test_a_task_without_tries_left_fails_with_its_error(celery):
    with pytest.raises(Failed, match="ValueError: never"):
        celery.run("hopeless.delay().get(timeout=30)")
    assert celery.notes().count("hopeless") == 3


def test_a_task_is_tried_again_by_itself_with_back_off(celery):
    assert celery.run("stubborn.delay('file').get(timeout=30)") == "made by the first"
    assert celery.notes().count("stubborn") == 2


def test_a_countdown_is_waited_for(celery):
    began, ran = celery.run("[time.time(), when.apply_async(countdown=1).get(timeout=30)]")
    assert ran - began >= 1


def test_an_eta_is_waited_for(celery):
    eta, ran = celery.run("""
        eta = datetime.now(UTC) + timedelta(seconds=1)
        [eta.timestamp(), when.apply_async(eta=eta).get(timeout=30)]
    """)
    assert ran >= eta


def test_what_is_due_sooner_runs_sooner(celery):
    late, soon = celery.run("""
        late, soon = when.apply_async(countdown=1.5), when.apply_async(countdown=0.5)
        [late.get(timeout=30), soon.get(timeout=30)]
    """)
    assert soon < late


def test_what_expired_does_not_run(celery):
    with pytest.raises(Failed, match="TaskRevokedError: expired"):
        celery.run("written.apply_async(['too late'], countdown=1, expires=0.5).get(timeout=30)")
    assert "too late" not in celery.notes()
