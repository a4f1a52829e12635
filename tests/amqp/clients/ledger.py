"""`ledger.py produce|consume URL QUEUE FILE`: publishes, or consumes, until it is ended; writes down what it received.

It connects again when the server ends. Each line of the file is flushed before the next message is asked for: `stored
N` for a publish that was confirmed, `got N AGAIN` for a delivery, `acked N` once its ack is sent.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import TextIO

import pika
from pika.adapters.blocking_connection import BlockingChannel

GONE = (pika.exceptions.AMQPError, OSError)


def main() -> None:
    what, url, queue, file = sys.argv[1:]
    numbers = itertools.count()
    with Path(file).open("a", buffering=1) as ledger:
        while True:
            try:
                with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                    channel = connection.channel()
                    channel.queue_declare(queue, durable=True)
                    if what == "produce":
                        produce(channel, queue, numbers, ledger)
                    else:
                        consume(channel, queue, ledger)
            except GONE:
                time.sleep(0.05)


def produce(channel: BlockingChannel, queue: str, numbers: itertools.count[int], ledger: TextIO) -> None:
    """Publish numbers; one that was not confirmed is not used again: it may be there or not."""
    channel.confirm_delivery()
    lasting = pika.BasicProperties(delivery_mode=2)
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number, lasting, mandatory=True)
        ledger.write(f"stored {number}\n")


def consume(channel: BlockingChannel, queue: str, ledger: TextIO) -> None:
    channel.basic_qos(prefetch_count=20)
    for method, _, body in channel.consume(queue):
        ledger.write(f"got {body.decode()} {int(method.redelivered)}\n")
        channel.basic_ack(method.delivery_tag)
        ledger.write(f"acked {body.decode()}\n")


if __name__ == "__main__":
    main()
