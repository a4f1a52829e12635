"""The actors that tests run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

FOLDER = Path(os.environ["FOLDER"])
QUEUE = os.environ["QUEUE"]

broker = RabbitmqBroker(url=os.environ["AMQP_URL"], **json.loads(os.environ["SETTINGS"]))
dramatiq.set_broker(broker)


def note(text: object) -> None:
    """Write a line down, for the test to read."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{text}\n")


@dramatiq.actor(queue_name=QUEUE)
def count_words(text: str) -> None:
    note(f"{len(text.split())} words")


@dramatiq.actor(queue_name=QUEUE)
def write(text: str) -> None:
    note(text)


@dramatiq.actor(queue_name=QUEUE)
def when(sent: float) -> None:
    """Note how long after it was sent it runs."""
    note(time.time() - sent)


@dramatiq.actor(queue_name=QUEUE, max_retries=3, min_backoff=200, max_backoff=400)
def flaky(good_at: int) -> None:
    """Succeed at the n-th try."""
    note(f"try {time.time()}")
    if (FOLDER / "notes").read_text().count("try") < good_at:
        raise ValueError("not yet")


@dramatiq.actor(queue_name=QUEUE, max_retries=1, min_backoff=50, max_backoff=50)
def hopeless() -> None:
    note("hopeless")
    raise ValueError("never")


@dramatiq.actor(queue_name=QUEUE)
def blocked(name: str) -> None:
    """Runs until the test lets it go on."""
    note(f"began {name}")
    while not (FOLDER / f"may-{name}").exists():
        time.sleep(0.02)
    note(f"ended {name}")
