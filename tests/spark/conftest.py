"""One Spark and one broker for all tests of a worker; each test has topics of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark import faulty
from tests.spark.brokers import broker as started
from tests.spark.java_classes import make_java_classes
from tests.spark.queries import Queries
from wherry.spark.sessions.session import session

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def java_classes():
    """Make Spark's classes once for all tests here: most start a Java, or use one."""
    make_java_classes()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with started(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """Start a session whose workers find this folder too, for the data source that fails on purpose."""
    faults = tmp_path_factory.mktemp("faults")
    added = {faulty.VARIABLE: str(faults), "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    os.environ.update(added)
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    made = session("tests", master="local[2]", conf={"spark.sql.warehouse.dir": warehouse, "spark.log.level": "ERROR"})
    made.dataSource.register(faulty.FaultySource)
    yield made
    gateway = made.sparkContext._gateway
    assert gateway is not None
    made.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends when its stdin does, and else only with this process
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
    for name in added:
        os.environ.pop(name, None)


@pytest.fixture
def queries(spark, broker, tmp_path):
    return Queries(spark, broker.url, tmp_path)
