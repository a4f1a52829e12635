"""A driver of Spark in a process of its own, that may be killed: commands as lines of JSON, and their answers.

`python -m tests.spark.soak.driver MASTER`
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.soak.plan import QUERIES
from tests.spark.soak.points import OPTION, PointsSource, passing
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.run import reason
from wherry.spark.pipelines.run.session import QUIET, opened
from wherry.spark.sessions.checkpoints import clear_unbegun
from wherry.spark.sessions.session import steady

COLUMNS = "key string, payload binary"
SEEN = "cast(concat('seen ', cast(payload AS string)) AS binary) AS payload"
JAVA = "spark.driver.extraJavaOptions"
CONF = {JAVA: f"{QUIET[JAVA]} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""A driver does not live long here: it has to start quickly."""


PRINTED_MAX = 10_000


def digest(rows: Iterable[tuple[str, bytes]]) -> tuple[int, str]:
    """Return how many rows, and a hash of all of them in whatever order."""
    lines = sorted(f"{key} ".encode() + payload for key, payload in rows)
    return len(lines), hashlib.sha256(b"\n".join(lines)).hexdigest()


def run(spark: SparkSession, job: dict[str, Any]) -> dict[str, str]:
    """Run both queries, until they have read what there is; return the errors of those that did not get there."""
    begun: dict[str, StreamingQuery] = {}
    errors: dict[str, str] = {}
    for name in QUERIES:
        try:
            begun[name] = _begun(spark, job, name)
        except PySparkException as fault:
            errors[name] = _reason_of(fault)
    for name, query in begun.items():
        try:
            query.awaitTermination()
        except PySparkException as fault:
            errors[name] = _reason_of(fault)
    return errors


def _reason_of(fault: PySparkException) -> str:
    """Return the reason in a line; all of Spark's text is printed to the log."""
    print(str(fault)[:PRINTED_MAX], file=sys.stderr, flush=True)
    return reason(fault)


def _begun(spark: SparkSession, job: dict[str, Any], name: str) -> StreamingQuery:
    folder, address = Path(job["folder"]), f"{job['address']}/{name}"
    rows: DataFrame = (
        spark.readStream.format("points")
        .schema(COLUMNS)
        .options(url=job["url"], topic=job["source"], subscription=f"to-{name}", maxRowsPerBatch=job["rows_per_batch"])
        .option(OPTION, address)
        .load()
        .selectExpr("key", SEEN)
    )
    if name == "topic":
        writer = rows.writeStream.format("points").options(url=job["url"], topic=job["target"]).option(OPTION, address)
    else:
        writer = rows.mapInArrow(passing(address), COLUMNS).writeStream.format("parquet").option("path", job["files"])
    checkpoint = str(folder / "checkpoint" / name)
    clear_unbegun(checkpoint)
    writer = writer.option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def files(spark: SparkSession, job: dict[str, Any]) -> tuple[int, str]:
    """Return the digest of what is in the files."""
    rows = spark.read.parquet(job["files"]).select("key", "payload").collect()
    return digest((row["key"], bytes(row["payload"])) for row in rows)


DO = {"run": run, "files": files}


def main() -> None:
    """Answer commands until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Spark or Java print is no answer
    master = sys.argv[1]
    with opened("soak", master, BrokerAddress(""), CONF) as spark:
        spark.dataSource.register(PointsSource)
        steady(spark, "points")
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            name, job = json.loads(line)
            print(json.dumps(DO[name](spark, job)), file=answers, flush=True)


if __name__ == "__main__":
    main()
