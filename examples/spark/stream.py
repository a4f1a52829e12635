"""Topic to topic, each row once: run it twice, and only what is new goes through.

Run a broker (`wherry serve`), then: python examples/spark/stream.py
"""

import os
import tempfile

from wherry.spark import session
from wherry.spark.link import FlightLink

URL = os.environ.get("WHERRY_FLIGHT_URL", "grpc://127.0.0.1:7072")
HERE, THERE = "example.numbers", "example.squares"


def main() -> None:
    """Some numbers, their squares, and what came of it."""
    for topic in (HERE, THERE):
        FlightLink(URL).action("create-topic", {"name": topic})
    spark = session("stream")
    checkpoint = tempfile.mkdtemp(prefix="example-stream-")  # keep yours: it is what the query remembers
    for first in (0, 500):
        numbers = spark.range(first, first + 500).selectExpr("concat('k', id) AS key", "cast(id AS STRING) AS payload")
        numbers.write.format("wherry").options(url=URL, topic=HERE).mode("append").save()
        squares = (
            spark.readStream.format("wherry")
            .options(url=URL, topic=HERE, payload="text", subscription="squares")
            .load()
            .selectExpr("key", "cast(cast(value AS BIGINT) * cast(value AS BIGINT) AS STRING) AS payload")
        )
        query = (
            squares.writeStream.format("wherry")
            .options(url=URL, topic=THERE, checkpointLocation=checkpoint)
            .trigger(availableNow=True)  # leave this line out, and it goes on for ever
            .start()
        )
        query.awaitTermination()
        done = query.lastProgress
        print(f"from {first}: {done.numInputRows if done else 0} rows in the last micro-batch")
    rows = spark.read.format("wherry").options(url=URL, topic=THERE).load()
    print(f"{rows.count()} squares, {rows.select('key').distinct().count()} different numbers")
    spark.stop()


if __name__ == "__main__":
    main()
