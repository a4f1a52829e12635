"""The tasks that tests run."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

FOLDER = Path(os.environ["FOLDER"])

app = Celery("tests", broker=os.environ["AMQP_URL"], backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    result_chord_retry_interval=0.2,
    worker_hijack_root_logger=True,
    **json.loads(os.environ["SETTINGS"]),
)


def note(text: object) -> None:
    """Write a line down, for the test to read."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{text}\n")


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def echo(value: Any) -> Any:
    return value


@app.task
def total(values: list[int]) -> int:
    return sum(values)


@app.task
def fail(words: str) -> None:
    raise ValueError(words)


@app.task(ignore_result=False)
def kept(value: Any) -> Any:
    return value


@app.task(ignore_result=True)
def forgotten(value: Any) -> Any:
    note(f"forgotten {value}")
    return value


@app.task
def written(value: Any) -> Any:
    """Leave a note."""
    note(value)
    return value


@app.task
def when() -> float:
    """Return the time at which it runs."""
    return time.time()


@app.task(rate_limit="4/s")
def at_times() -> float:
    """Return the time at which it runs, not more often than four times a second."""
    return time.time()


@app.task(bind=True, max_retries=5)
def flaky(self: Any, good_at: int) -> list[Any]:
    """Succeed at the n-th try; each try comes half a second after the one before."""
    note(f"try {self.request.retries} {time.time()}")
    if self.request.retries < good_at:
        raise self.retry(countdown=0.5, exc=ValueError("not yet"))
    return [self.request.retries, self.request.delivery_info["redelivered"]]


@app.task(bind=True, max_retries=2, default_retry_delay=0)
def hopeless(self: Any) -> None:
    note("hopeless")
    raise self.retry(exc=ValueError("never"))


@app.task(autoretry_for=(OSError,), retry_backoff=0.1, retry_jitter=False, max_retries=3)
def stubborn(name: str) -> str:
    """Fail until its file is made."""
    note("stubborn")
    try:
        return (FOLDER / name).read_text()
    except OSError:
        (FOLDER / name).write_text("made by the first")
        raise


def _wait(name: str, redelivered: bool) -> str:
    note(f"began {name} {redelivered}")
    while not (FOLDER / f"may-{name}").exists():
        time.sleep(0.02)
    note(f"ended {name}")
    return f"{name} done"


@app.task(bind=True)
def blocked(self: Any, name: str) -> str:
    """Runs until the test lets it go on."""
    return _wait(name, self.request.delivery_info["redelivered"])


@app.task(bind=True, acks_late=True)
def blocked_late(self: Any, name: str) -> str:
    """Wait like `blocked`, acked when it is done."""
    return _wait(name, self.request.delivery_info["redelivered"])


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def deadly(self: Any) -> str:
    """Kills its process, but only the first time."""
    note(f"deadly {self.request.delivery_info['redelivered']}")
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.task(soft_time_limit=1)
def patient() -> str:
    """Notices that its time is over."""
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        return "cleaned up"
    return "slept"


@app.task(time_limit=1)
def deaf() -> None:
    """Ignore that its time is over."""
    time.sleep(60)
