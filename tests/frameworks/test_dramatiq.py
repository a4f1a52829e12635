"""Dramatiq: its quick start, retries, delays, dead letters, priorities, and queues that go away."""

from itertools import pairwise

from tests.frameworks.programs import wait_until


def test_the_quick_start(dramatiq):
    worker = dramatiq.worker()
    dramatiq.run("count_words.send('it was a dark and stormy night')")
    wait_until(lambda: dramatiq.notes() == ["7 words"], worker.output)
    wait_until(lambda: dramatiq.counts() == [0, 0, 0])
    worker.stop()
    assert worker.process.returncode == 0, worker.output()


def test_messages_wait_for_a_worker(dramatiq):
    dramatiq.run("[write.send(str(number)) for number in range(50)]")
    assert dramatiq.counts() == [50, 0, 0]
    worker = dramatiq.worker(threads=1)
    wait_until(lambda: len(dramatiq.notes()) == 50, worker.output)
    assert sorted(map(int, dramatiq.notes())) == list(range(50))


def test_what_failed_is_tried_again_after_a_while(dramatiq):
    worker = dramatiq.worker()
    dramatiq.run("flaky.send(3)")
    wait_until(lambda: len(dramatiq.notes()) == 3, worker.output)
    wait_until(lambda: dramatiq.counts() == [0, 0, 0])
    times = [float(line.split()[1]) for line in dramatiq.notes()]
    assert all(later - sooner >= 0.1 for sooner, later in pairwise(times)), "half of 200 ms at least"


def test_what_fails_for_ever_is_a_dead_letter(dramatiq):
    worker = dramatiq.worker()
    dramatiq.run("hopeless.send()")
    wait_until(lambda: dramatiq.counts() == [0, 0, 1], worker.output)
    assert dramatiq.notes() == ["hopeless", "hopeless"]
    body, headers = dramatiq.run("""
        method, properties, body = broker.channel.basic_get(f"{QUEUE}.XQ", auto_ack=True)
        [body.decode(), properties.headers]
    """)
    assert '"actor_name":"hopeless"' in body
    [death] = headers["x-death"]
    assert (death["queue"], death["reason"], death["count"], death["exchange"]) == (dramatiq.queue, "rejected", 1, "")
    assert headers["x-first-death-queue"] == dramatiq.queue


def test_what_cannot_be_read_is_a_dead_letter(dramatiq):
    worker = dramatiq.worker()
    dramatiq.run("broker.channel.basic_publish('', QUEUE, b'not a message')")
    wait_until(lambda: dramatiq.counts() == [0, 0, 1], worker.output)
    dramatiq.run("write.send('still here')")
    wait_until(lambda: dramatiq.notes() == ["still here"], worker.output)


def test_a_delay_is_waited_for(dramatiq):
    dramatiq.run("when.send_with_options(args=(time.time(),), delay=1_000)")
    assert dramatiq.counts() == [0, 1, 0], "it waits in a queue of its own"
    worker = dramatiq.worker()
    wait_until(lambda: len(dramatiq.notes()) == 1, worker.output)
    assert float(dramatiq.notes()[0]) >= 1
    wait_until(lambda: dramatiq.counts() == [0, 0, 0])


def test_the_most_urgent_runs_first(dramatiq):
    dramatiq.set(max_priority=10)
    dramatiq.run("""
        for name in "ab":
            for priority in (0, 3, 10, 5):
                write.send_with_options(args=(f"{priority}{name}",), broker_priority=priority)
    """)
    worker = dramatiq.worker(threads=1, prefetch=1)
    wait_until(lambda: len(dramatiq.notes()) == 8, worker.output)
    assert dramatiq.notes() == ["10a", "10b", "5a", "5b", "3a", "3b", "0a", "0b"]


def test_what_a_killed_worker_had_runs_elsewhere(dramatiq):
    first = dramatiq.worker()
    dramatiq.run("blocked.send('job')")
    wait_until(lambda: dramatiq.notes() == ["began job"], first.output)
    first.kill()
    second = dramatiq.worker()
    wait_until(lambda: dramatiq.notes() == ["began job", "began job"], second.output)
    dramatiq.allow("job")
    wait_until(lambda: dramatiq.notes()[-1] == "ended job", second.output)


def test_a_queue_that_was_deleted_is_declared_again(dramatiq):
    dramatiq.set(confirm_delivery=True)
    dramatiq.run("write.send('first')")
    assert dramatiq.run("broker.channel.queue_delete(QUEUE).method.message_count") == 1
    dramatiq.run("write.send('second')")
    assert dramatiq.counts() == [1, 0, 0]
    worker = dramatiq.worker()
    wait_until(lambda: dramatiq.notes() == ["second"], worker.output)


def test_a_worker_continues_when_its_queue_was_deleted(dramatiq):
    worker = dramatiq.worker()
    dramatiq.set(confirm_delivery=True).run("write.send('first')")
    wait_until(lambda: dramatiq.notes() == ["first"], worker.output)
    dramatiq.run("broker.channel.queue_delete(QUEUE)")
    worker.until_printed("Restarting consumer")
    dramatiq.run("write.send('second')")
    wait_until(lambda: dramatiq.notes() == ["first", "second"], worker.output)


def test_flushing_queues_that_are_not_there_is_no_error(dramatiq):
    dramatiq.run("broker.flush('nowhere-at-all')")
    dramatiq.run("[write.send('x') for _ in range(3)]; broker.flush(QUEUE)")
    assert dramatiq.counts() == [0, 0, 0]


def test_a_pipeline_hands_results_on(dramatiq):
    worker = dramatiq.worker()
    dramatiq.run("(write.message('one') | write.message_with_options(args=('two',), pipe_ignore=True)).run()")
    wait_until(lambda: dramatiq.notes() == ["one", "two"], worker.output)
