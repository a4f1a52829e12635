"""The actors of the example.

Run a broker (`wherry serve`), then: dramatiq actors --processes 1 --threads 2
"""

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage

QUEUE = "example.dramatiq"

broker = RabbitmqBroker(url=os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672"), confirm_delivery=True)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def count_words(text: str) -> None:
    print(f"{len(text.split())} words", flush=True)


@dramatiq.actor(queue_name=QUEUE)
def remind(what: str) -> None:
    print(f"remember {what}", flush=True)


@dramatiq.actor(queue_name=QUEUE, min_backoff=100, max_backoff=200)
def letter() -> None:
    """Nobody is at home the first two times."""
    message = CurrentMessage.get_current_message()
    if message is not None and message.options.get("retries", 0) < 2:
        raise ConnectionError("nobody is at home")
    print("the letter arrived", flush=True)


@dramatiq.actor(queue_name=QUEUE, max_retries=1, min_backoff=100, max_backoff=100)
def parcel(where: str) -> None:
    """Never arrives."""
    raise LookupError(f"{where} is not on the map")
