"""Celery: revoke, inspect, remote control and events, over its fanout and reply queues."""

import pytest

from tests.frameworks.programs import Failed, wait_until

QUICK = ("--without-mingle", "--without-gossip")
THREADS = ("--pool", "threads", "--concurrency", "1", *QUICK)
PREFORK = ("--pool", "prefork", "--concurrency", "1", *QUICK)


def ask(celery, question):
    """Return the answer of the only worker."""
    [answer] = celery.run(f"app.control.inspect(timeout=3, limit=1).{question} or dict()").values()
    return answer


def send(celery, command, **arguments):
    """Send a command, and return the answer of the only worker."""
    [answer] = celery.run(f"app.control.broadcast('{command}', {arguments}, reply=True, timeout=20, limit=1)")
    [words] = answer.values()
    return words


def names(tasks):
    return [each.get("request", each)["args"] for each in tasks]


def test_a_revoked_task_does_not_run(celery):
    celery.worker(*THREADS)
    celery.run("late = written.apply_async(['late'], countdown=2)")
    wait_until(lambda: names(ask(celery, "scheduled()")) == [["late"]])
    celery.run("late.revoke()")
    wait_until(lambda: len(ask(celery, "revoked()")) == 1)
    with pytest.raises(Failed, match="TaskRevokedError: revoked"):
        celery.run("late.get(timeout=30)")
    assert celery.notes() == []


def test_a_running_task_is_terminated(celery):
    celery.worker(*PREFORK)
    celery.run("running = blocked.delay('for ever')")
    wait_until(lambda: celery.notes() == ["began for ever False"])
    celery.run("running.revoke(terminate=True, signal='SIGKILL')")
    with pytest.raises(Failed, match="TaskRevokedError: terminated"):
        celery.run("running.get(timeout=30)")
    assert celery.run("add.delay(1, 1).get(timeout=30)") == 2, "the worker continues"


def test_inspect_shows_what_a_worker_does(celery):
    celery.worker(*THREADS)
    celery.run("held = blocked.delay('held')")
    wait_until(lambda: celery.notes() == ["began held False"])
    celery.run("more = written.delay('reserved'); later = written.apply_async(['later'], countdown=3600)")
    assert ask(celery, "ping()") == {"ok": "pong"}
    wait_until(lambda: names(ask(celery, "reserved()")) == [["reserved"]])
    wait_until(lambda: names(ask(celery, "scheduled()")) == [["later"]])
    assert names(ask(celery, "active()")) == [["held"]]
    assert {"celery_tasks.add", "celery_tasks.blocked"} <= set(ask(celery, "registered()"))
    assert [queue["name"] for queue in ask(celery, "active_queues()")] == [celery.queue]
    stats = ask(celery, "stats()")
    assert (stats["pool"]["max-concurrency"], stats["broker"]["transport"]) == (1, "amqp")
    assert ask(celery, "conf()")["task_default_queue"] == celery.queue
    assert ask(celery, f"query_task('{celery.run('held.id')}')") != {}
    celery.allow("held")
    assert celery.run("more.get(timeout=30)") == "reserved"
    celery.run("later.revoke()")


def test_the_command_line_finds_the_workers(celery):
    celery.worker(*THREADS)
    me = f"{celery.queue}-0@here"
    assert f"{me}: OK" in celery.command("status", "--destination", me, "--timeout", "5")
    assert "pong" in celery.command("inspect", "--destination", me, "--timeout", "5", "ping")
    assert "celery_tasks.add" in celery.command("inspect", "--destination", me, "--timeout", "5", "registered")
    assert "OK" in celery.command("control", "--destination", me, "--timeout", "5", "heartbeat")


def test_every_worker_answers_a_ping(celery):
    celery.worker(*THREADS)
    celery.worker(*THREADS)
    mine = [f"{celery.queue}-{number}@here" for number in (0, 1)]
    found = celery.run(f"app.control.ping(destination={mine}, timeout=20, limit=2)")
    assert sorted(name for answer in found for name in answer) == mine


def test_a_worker_is_shut_down_from_afar(celery):
    worker = celery.worker(*THREADS)
    celery.run(f"app.control.shutdown(destination=['{celery.queue}-0@here'])")
    assert worker.wait() == 0


def test_a_worker_adds_a_queue_and_drops_the_queue_again(celery):
    celery.worker(*THREADS)
    other = f"{celery.queue}-other"
    assert send(celery, "add_consumer", queue=other) == {"ok": f"add consumer {other}"}
    assert celery.run(f"add.apply_async((1, 2), queue='{other}').get(timeout=30)") == 3
    assert send(celery, "cancel_consumer", queue=other) == {"ok": f"no longer consuming from {other}"}
    wait_until(lambda: [queue["name"] for queue in ask(celery, "active_queues()")] == [celery.queue])
    assert celery.run(f"waits = add.apply_async((1, 2), queue='{other}'); add.delay(3, 4).get(timeout=30)") == 7
    assert celery.run("waits.ready()") is False


def test_the_pool_of_a_worker_grows(celery):
    celery.worker(*PREFORK)

    def pool():
        return len(ask(celery, "stats()")["pool"]["processes"])

    assert pool() == 1
    assert send(celery, "pool_grow", n=1) == {"ok": "pool will grow"}
    wait_until(lambda: pool() == 2)
    celery.run("held = [blocked.delay(name) for name in ('one', 'two')]")
    wait_until(lambda: len(celery.notes()) == 2)
    celery.allow("one", "two")
    assert celery.run("[each.get(timeout=30) for each in held]") == ["one done", "two done"]


def test_rate_and_time_limits_are_changed_from_afar(celery):
    celery.worker(*THREADS)
    limited = send(celery, "time_limit", task_name="celery_tasks.when", hard=60)
    assert limited == {"ok": "time limits set successfully"}
    slowed = send(celery, "rate_limit", task_name="celery_tasks.when", rate_limit="4/s")
    assert slowed == {"ok": "new rate limit set successfully"}
    times = sorted(celery.run("[each.get(timeout=30) for each in [when.delay() for _ in range(5)]]"))
    assert times[-1] - times[0] >= 4 / 4 - 0.1


LISTEN = """
    import threading

    seen, stopped, connected = [], threading.Event(), threading.Event()

    def listen():
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen.append})
            connected.set()
            for _ in receiver.consume(limit=None, timeout=None, wakeup=True):
                pass

    threading.Thread(target=listen, daemon=True).start()
    connected.wait(30)
"""


def test_events_report_the_life_of_a_task_and_of_a_worker(celery):
    celery.set(task_send_sent_event=True)
    celery.run(LISTEN)
    celery.worker(*THREADS, "--task-events")
    wait_until(lambda: "worker-online" in celery.run("[each['type'] for each in seen]"))
    celery.run("result = add.delay(2, 3); result.get(timeout=30)")
    life = ["task-sent", "task-received", "task-started", "task-succeeded"]

    def lived():
        return celery.run("[each['type'] for each in list(seen) if each.get('uuid') == result.id]")

    wait_until(lambda: sorted(lived()) == sorted(life), lambda: str(lived()))
    assert [kind for kind in lived() if kind != "task-sent"] == life[1:]
    wait_until(lambda: "worker-heartbeat" in celery.run("[each['type'] for each in seen]"))
    assert celery.run("[each['result'] for each in seen if each['type'] == 'task-succeeded']") == ["5"]


def test_events_are_turned_on_from_afar(celery):
    celery.run(LISTEN)
    celery.worker(*THREADS)
    celery.run("add.delay(1, 1).get(timeout=30)")
    assert "ok" in send(celery, "enable_events")
    celery.run("done = add.delay(1, 1); done.get(timeout=30)")
    wait_until(lambda: celery.run("[e['uuid'] == done.id for e in list(seen) if e['type'] == 'task-succeeded']"))
    assert celery.run("{e['uuid'] for e in list(seen) if 'uuid' in e} == {done.id}") is True
