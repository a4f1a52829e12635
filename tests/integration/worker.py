"""A process to be killed: publishes, pulls and acks as fast as it can, and writes down what was confirmed.

Each line goes to a pipe with one write after the broker confirmed it, so the reader knows exactly what was promised.
"""

import asyncio
import os
import sys
from random import random

import wherry

BATCH = 20


def report(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def produce(broker, name):
    number = 0
    while True:
        messages = [f"{name}/{number + row}".encode() for row in range(BATCH)]
        options = wherry.PublishOptions(producer=name, sequence=number)
        await broker.publish("jobs", messages, options)
        report("published", name, number, BATCH)
        number += BATCH


async def consume(broker, name):
    async with await broker.consumer("jobs", "workers", name) as consumer:
        async for delivery in consumer.stream(37):
            names = [payload.decode() for payload in delivery.payloads()]
            if random() < 0.1:
                await delivery.nack(delay_ms=0)
                continue
            report("acking", *names)
            await delivery.ack()
            report("acked", *names)


async def main(path, life):
    async with wherry.open(path, cache_bytes=1 << 20) as broker:
        await broker.create_topic("jobs", partitions=3)
        await broker.subscribe("jobs", "workers", retry=wherry.Retry(attempts=None))
        report("open")
        work = [produce(broker, f"p{life}-{number}") for number in range(3)]
        work += [consume(broker, f"c{number}") for number in range(3)]
        await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
