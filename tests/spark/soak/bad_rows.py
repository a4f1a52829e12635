"""A pipeline over rows of which one in a hundred cannot be read: it continues, reports why, and SQL mends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.brokers import Broker
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.run import Pipeline
from wherry.spark.pipelines.run.session import opened
from wherry.spark.pipelines.run.spec import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.soak.rig import Rig

CHUNK = 50_000
EVERY = 100
"""One row of so many is bad."""

PIPELINE = """
name = "{topic}"
[sources.numbers]
topic = "{topic}"
payload = "json"
schema = "n LONG"
dead = "{topic}.bad"
[steps.plain]
sql = "SELECT key, value.n AS n FROM numbers"
[sinks.plain]
from = "plain"
topic = "{topic}.good"
"""
BAD = ("{{'n': {n}}}", '{{"n": "{n}"}}', '{{"n": {n}')
"""Wrong quotes, a wrong type, an end that is missing."""
REASONS = ("malformed", "int", "truncated")
MENDED = """
    SELECT key, concat('{"n": ', regexp_extract(cast(payload AS string), '[0-9]+', 0), '}') AS payload
    FROM bad WHERE headers['wherry-reason'] IS NOT NULL
"""


def payload(n: int) -> bytes:
    good = n % EVERY != EVERY - 1
    return (f'{{"n": {n}}}' if good else BAD[n // EVERY % len(BAD)].format(n=n)).encode()


def show(spark: SparkSession, broker: Broker, folder: Path, rows: int) -> None:
    """Show all of it with so many rows; raise `AssertionError` for what is not as it should be."""
    topic = broker.create(name="numbers", partitions=2, keep="age", keep_ms=3_600_000)
    for first in range(0, rows, CHUNK):
        numbers = range(first, min(first + CHUNK, rows))
        broker.publish(topic, [payload(n) for n in numbers], key=[f"k{n}" for n in numbers])
    path = folder / "bad-rows.toml"
    path.write_text(PIPELINE.format(topic=topic))
    bad = {n for n in range(rows) if n % EVERY == EVERY - 1}

    assert run(spark, broker, path) == {"plain": rows - len(bad), "numbers.bad": len(bad)}
    assert numbers_of(broker, f"{topic}.good") == [n for n in range(rows) if n not in bad]
    check_reported(broker, topic, bad)

    letters = spark.read.format("wherry").options(url=broker.url, topic=f"{topic}.bad").load()
    letters.createOrReplaceTempView("bad")
    for _ in range(2):  # the second time the key is known, and nothing is written
        mended = spark.sql(MENDED).write.format("wherry").options(url=broker.url, topic=topic)
        mended.option("commitKey", f"mend {topic}").mode("append").save()
        extents = broker.link.action("extents", {"topic": topic})["stop"]
        assert sum(extents.values()) == rows + len(bad), extents
    assert run(spark, broker, path) == {"plain": len(bad), "numbers.bad": 0}
    assert numbers_of(broker, f"{topic}.good") == list(range(rows)), "each row once"
    check_reported(broker, topic, bad)


def run(spark: SparkSession, broker: Broker, path: Path) -> dict[str, int]:
    """Return what each query wrote; none of them may stop on the way."""
    reports = Pipeline(spark, read(path), BrokerAddress(broker.url), once=True).run(lambda _: None)
    assert all(each.state == "done" and each.restarts == 0 for each in reports), reports
    return {each.query: each.rows_out for each in reports}


def numbers_of(broker: Broker, topic: str) -> list[int]:
    found = []
    for ticket in broker.link.parts({"topic": topic, "columns": ["offset", "payload"]}):
        for batch in broker.link.read(json.loads(ticket)):
            found += [json.loads(each)["n"] for each in batch.column("payload").to_pylist()]
    return sorted(found)


def check_reported(broker: Broker, topic: str, bad: set[int]) -> None:
    """Check that each bad row is there once, as it came, with the reason."""
    letters = broker.rows(f"{topic}.bad")
    assert len(letters) == len(bad)
    assert {letter["payload"] for letter in letters} == {payload(n) for n in bad}
    for letter in letters:
        n, headers = int(letter["key"][1:]), dict(letter["headers"])
        assert letter["payload"] == payload(n)
        assert headers["wherry-topic"] == topic and headers["wherry-offset"].isdecimal()
        assert REASONS[n // EVERY % len(BAD)] in headers["wherry-reason"], headers


def apart(rig: Rig, rows: int) -> None:
    """Show it at the end of a soak test, in a session of its own."""
    rig.driver.close()
    with opened("bad-rows", rig.master, BrokerAddress(rig.broker.url)) as spark:
        show(spark, rig.broker, rig.folder, rows)
