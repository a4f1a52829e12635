"""What comes while a sync is under way is gathered, and is one batch when the sync ends."""

from __future__ import annotations

import pytest

from tests.amqp.raw import Raw
from tests.amqp.wires import LASTING, durable, url_of
from tests.fair.test_floods import disk_that_takes_nothing
from tests.stomp.serving import running, until
from wherry.broker.broker import Broker
from wherry.broker.commit.gathering import PATIENT_BYTES_MAX
from wherry.model.row_batch import RowBatch
from wherry.node.node import Node
from wherry.queueing.flow.intake import Intake

PASSING = b"\x00\x00"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with running(tmp_path_factory.mktemp("gathering")) as found:
        yield found


@pytest.fixture
def submits(monkeypatch) -> list[int]:
    """Return a list of how many messages were submitted together, each time."""
    found: list[int] = []
    submit = Broker.submit_at_once

    def counted(broker: Broker, topic, messages, options):
        found.append(messages.num_rows if isinstance(messages, RowBatch) else messages.batch.num_rows)
        return submit(broker, topic, messages, options)

    monkeypatch.setattr(Broker, "submit_at_once", counted)
    return found


def intake_of(node: Node) -> Intake:
    assert node.stomp_sessions is not None
    return node.stomp_sessions.queueing.intake


def publish(node: Node, raw: Raw, body: bytes, properties: bytes = LASTING) -> None:
    """Publish one message, which is in the intake on return."""
    held = intake_of(node).unstored_bytes
    raw.publish("q", body, properties)
    until(lambda: intake_of(node).unstored_bytes > held)


def test_what_comes_during_a_sync_is_one_batch_when_it_ends(node, submits, monkeypatch):
    with Raw(url_of(node)).opened() as raw:
        durable(raw, "q")
        with disk_that_takes_nothing(monkeypatch) as resume:
            for number in range(6):
                publish(node, raw, b"%d" % number)
            until(lambda: submits == [1])
            resume.set()
            until(lambda: intake_of(node).unstored_bytes == 0)
    assert submits == [1, 5]


def test_what_is_large_or_waits_for_no_disk_is_not_held_back(node, submits, monkeypatch):
    with Raw(url_of(node)).opened() as raw:
        durable(raw, "q")
        with disk_that_takes_nothing(monkeypatch):
            publish(node, raw, b"first")
            publish(node, raw, b"passing", PASSING)
            until(lambda: submits == [1, 1])
            publish(node, raw, bytes(PATIENT_BYTES_MAX))
            until(lambda: submits == [1, 1, 1])
        until(lambda: intake_of(node).unstored_bytes == 0)
