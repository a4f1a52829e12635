"""What clients of AMQP ask of RabbitMQ's management API: Flower, Kombu's manager, and `rabbitmqadmin list`."""

import base64
import json
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.frameworks.programs import PATIENCE_S, wait_until

THREADS = ("--pool", "threads", "--concurrency", "1", "--without-mingle", "--without-gossip")
GUEST = base64.b64encode(b"guest:guest").decode()


@pytest.fixture
def ask(broker):
    """Ask as `rabbitmqadmin` does."""

    def get(path):
        asked = urllib.request.Request(f"{broker.http}/api{path}", headers={"Authorization": f"Basic {GUEST}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    return get


def read(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def test_flower_shows_workers_and_the_lengths_of_their_queues(celery, broker):
    celery.worker(*THREADS)
    flower, page = celery.flower(f"{broker.http.replace('://', '://guest:guest@')}/api/")
    wait_until(lambda: f"{celery.queue}-0@here" in read(f"{page}/api/workers?refresh=1"), flower.output)
    celery.run("add.delay(1, 1).get(timeout=30)")

    def consumers():
        return [
            each.get("consumers")
            for each in json.loads(read(f"{page}/api/queues/length"))["active_queues"]
            if each["name"] == celery.queue
        ]

    wait_until(lambda: consumers() == [1], flower.output)
    assert celery.queue in read(f"{page}/broker")


def test_kombu_lists_queues_and_bindings(celery, broker):
    celery.run("[add.delay(1, 1) for _ in range(3)]")
    place = urlsplit(broker.http)
    celery.run(f"manager = app.connection().get_manager(hostname='{place.hostname}', port={place.port})")
    found = celery.run(
        "[b for b in manager.get_bindings() if b['source'] and b['destination'] == app.conf.task_default_queue]"
    )
    assert [(each["source"], each["routing_key"]) for each in found] == [(celery.queue, celery.queue)]
    wait_until(lambda: celery.run("manager.get_queue('/', app.conf.task_default_queue).get('messages')") == 3)


def test_rabbitmqadmin_lists(celery, ask):
    celery.worker(*THREADS)
    me = celery.queue

    def rows(path, *columns):
        """Return rows as `rabbitmqadmin list` shows them: it asks for columns, and takes them out of whatever comes."""
        return [tuple(row.get(name) for name in columns) for row in ask(f"{path}?columns={','.join(columns)}")]

    wait_until(lambda: (me, 0) in rows("/queues", "name", "messages"))
    assert (me,) in rows("/queues/%2F", "name")
    assert (me, "direct") in rows("/exchanges", "name", "type")
    assert ("", "direct") in rows("/exchanges/%2F", "name", "type")
    assert (me, me, me) in rows("/bindings", "source", "destination", "routing_key")
    assert ("", me, me) in rows("/bindings/%2F", "source", "destination", "routing_key")
    assert ("/",) in rows("/vhosts", "name")
    wait_until(lambda: me in [each["queue"]["name"] for each in ask("/consumers")])
    wait_until(lambda: ("guest",) in rows("/connections", "user"))
    wait_until(lambda: ("guest",) in rows("/channels", "user"))
    overview = ask("/overview?columns=rabbitmq_version,cluster_name,queue_totals.messages,object_totals.queues")
    assert overview["rabbitmq_version"]
    assert overview["object_totals"]["queues"] >= 1
    assert len(ask("/nodes?columns=name,type,mem_used")) == 1
