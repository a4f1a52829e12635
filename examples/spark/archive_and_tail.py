"""One DataFrame over the archive and the live log: no gap and no overlap where they meet.

Run a broker (`wherry serve`), then: python examples/spark/archive_and_tail.py
"""

import os
import tempfile

from wherry.spark import session
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive.archive import archive
from wherry.spark.pipelines.archive.seam import whole

URL = os.environ.get("WHERRY_FLIGHT_URL", "grpc://127.0.0.1:7072")
TOPIC = "example.readings"


def main() -> None:
    """Archive what is there, publish more, and read all of it."""
    broker, lake = FlightLink(URL), tempfile.mkdtemp(prefix="example-lake-")
    broker.action("create-topic", {"name": TOPIC, "partitions": 2, "keep": "age", "keep_ms": 3_600_000})
    spark = session("archive and tail")
    for first in (0, 1_000):
        rows = spark.range(first, first + 1_000).selectExpr("concat('k', id) AS key", "cast(id AS STRING) AS payload")
        rows.write.format("wherry").options(url=URL, topic=TOPIC).mode("append").save()
        if first == 0:
            done = archive(spark, broker, TOPIC, lake)
            print(f"archived {done.rows} rows")
    both = whole(spark, TOPIC, archive=lake, url=URL)
    print(f"{both.count()} rows in all, {both.select('payload').distinct().count()} different")
    spark.stop()


if __name__ == "__main__":
    main()
