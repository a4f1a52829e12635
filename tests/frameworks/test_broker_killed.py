"""A Wherry node is killed and comes back: workers go on by themselves, and nothing that was confirmed is lost."""

from tests.frameworks.celery_apps import CeleryApp
from tests.frameworks.programs import wait_until

THREADS = ("--pool", "threads", "--concurrency", "2")


def test_a_worker_comes_back_when_the_broker_was_killed(mortal, tmp_path):
    with CeleryApp(mortal.url, tmp_path) as celery:
        worker = celery.worker(*THREADS)
        assert celery.run("add.delay(1, 1).get(timeout=30)") == 2
        mortal.kill()
        worker.until_printed("Connection to broker lost")
        mortal.start()
        celery.run("written.apply_async(['after'], retry=True)")
        wait_until(lambda: celery.notes() == ["after"], worker.output)


def test_tasks_that_wait_outlive_the_broker(mortal, tmp_path):
    with CeleryApp(mortal.url, tmp_path, broker_transport_options={"confirm_publish": True}) as celery:
        celery.run("[written.delay(n) for n in range(20)]")
        mortal.kill()
        mortal.start()
        worker = celery.worker("--pool", "solo", "--without-mingle", "--without-gossip")
        wait_until(lambda: celery.notes() == [str(n) for n in range(20)], worker.output)


def test_a_late_acked_task_outlives_the_broker_and_its_worker(mortal, tmp_path):
    with CeleryApp(mortal.url, tmp_path, broker_transport_options={"confirm_publish": True}) as celery:
        first = celery.worker()
        celery.run("blocked_late.delay('job')")
        wait_until(lambda: celery.notes() == ["began job False"])
        first.kill()
        mortal.kill()
        mortal.start()
        second = celery.worker()
        wait_until(lambda: celery.notes() == ["began job False", "began job True"], second.output)
        celery.allow("job")
        wait_until(lambda: celery.notes()[-1] == "ended job", second.output)
