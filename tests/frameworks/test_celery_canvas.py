"""Celery: groups, chains and chords. Results are kept in files, since those of rpc:// know no chords."""

import pytest

from tests.frameworks.celery_apps import CeleryApp
from tests.frameworks.programs import Failed, wait_until


@pytest.fixture(scope="module")
def celery(amqp_url, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    with CeleryApp(amqp_url, tmp_path_factory.mktemp("celery"), result_backend=f"file://{results}") as app:
        app.worker("--pool", "threads", "--concurrency", "2")
        yield app


@pytest.fixture(scope="module")
def by_messages(amqp_url, tmp_path_factory):
    """Yield the same with results that come as messages."""
    with CeleryApp(amqp_url, tmp_path_factory.mktemp("by_messages")) as app:
        app.worker("--pool", "threads", "--concurrency", "2")
        yield app


def test_a_group_gives_all_results_in_order(celery):
    assert celery.run("group(add.s(n, n) for n in range(10))().get(timeout=30)") == [n + n for n in range(10)]


def test_a_group_gives_all_results_by_messages(by_messages):
    assert by_messages.run("group(add.s(n, n) for n in range(10))().get(timeout=30)") == [n + n for n in range(10)]


def test_a_chain_hands_each_result_on(celery):
    assert celery.run("chain(add.s(2, 2), add.s(4), add.s(8))().get(timeout=30)") == 16


def test_a_chain_hands_each_result_on_by_messages(by_messages):
    assert by_messages.run("(add.s(2, 2) | add.s(4) | add.s(8))().get(timeout=30)") == 16


def test_a_chord_runs_its_body_when_its_header_is_done(celery):
    assert celery.run("chord(add.s(n, n) for n in range(10))(total.s()).get(timeout=30)") == 90


def test_a_chain_through_a_group_is_a_chord(celery):
    assert celery.run("(add.s(1, 1) | group(add.s(n) for n in range(3)) | total.s())().get(timeout=30)") == 9


def test_a_chord_with_an_error_in_its_header_fails(celery):
    with pytest.raises(Failed, match="ValueError"):
        celery.run("chord([add.s(1, 1), fail.s('broken')])(total.s()).get(timeout=30)")


def test_errors_are_handed_to_a_task_of_their_own(celery):
    celery.run("fail.apply_async(['x'], link_error=written.si('after the error'))")
    wait_until(lambda: "after the error" in celery.notes())


def test_chunks_and_maps_are_tasks_of_many(celery):
    assert celery.run("add.chunks(zip(range(6), range(6)), 2)().get(timeout=30)") == [[0, 2], [4, 6], [8, 10]]
    assert celery.run("total.map([[1, 2], [3, 4]]).delay().get(timeout=30)") == [3, 7]
