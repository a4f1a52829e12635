"""The tasks of the example.

Run a broker (`wherry serve`), then: celery --app tasks worker --concurrency 2 --loglevel INFO
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from celery import Celery

RESULTS = Path(tempfile.gettempdir()) / "wherry-example-celery"
RESULTS.mkdir(exist_ok=True)

app = Celery(
    "tasks",
    broker=os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672"),
    backend=f"file://{RESULTS}",
)
app.conf.update(
    task_default_queue="example.celery",
    task_queue_max_priority=9,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def square(x: int) -> int:
    return x * x


@app.task
def total(values: list[int]) -> int:
    return sum(values)


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=0.2, max_retries=5)
def weather(self: Any) -> str:
    """A service that answers the third time."""
    if self.request.retries < 2:
        raise ConnectionError("the weather service is down")
    return "sunny"


@app.task
def greet(name: str) -> str:
    return f"good {name}"


@app.task
def letter(kind: str) -> tuple[str, float]:
    """Write a letter; when it was written."""
    time.sleep(0.1)
    return kind, time.time()
