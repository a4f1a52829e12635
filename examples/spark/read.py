"""A topic in SQL: what was sold in each city. Reads the log; nothing is consumed.

Run a broker (`wherry serve`), then: python examples/spark/read.py
"""

import json
import os
import random

import pyarrow as pa
from pyarrow import flight

from wherry.spark import session

URL = os.environ.get("WHERRY_FLIGHT_URL", "grpc://127.0.0.1:7072")
SCHEMA = "number LONG, city STRING, amount DOUBLE"


def publish(topic: str, count: int) -> None:
    """Some orders, over Arrow Flight."""
    client, chance = flight.connect(URL), random.Random(1)
    list(client.do_action(flight.Action("create-topic", json.dumps({"name": topic}).encode())))
    cities = [chance.choice(["Bonn", "Oslo", "Lyon"]) for _ in range(count)]
    orders = [
        json.dumps({"number": n, "city": city, "amount": round(chance.uniform(1, 100), 2)}).encode()
        for n, city in enumerate(cities)
    ]
    batch = pa.record_batch({"key": cities, "payload": pa.array(orders, pa.binary())})
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        answers.read()  # durable


def main() -> None:
    """Publish, then ask."""
    publish("example.read", 1_000)
    spark = session("read")
    orders = spark.read.format("wherry").options(url=URL, topic="example.read", payload="json", payloadSchema=SCHEMA)
    orders.load().createOrReplaceTempView("orders")
    spark.sql("""
        SELECT value.city, count(*) AS orders, round(sum(value.amount), 2) AS total, max(published) AS latest
        FROM orders WHERE error IS NULL GROUP BY ALL ORDER BY total DESC
    """).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
