"""Opens a Spark session for a command: on this machine, on a cluster, or through Spark Connect."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.model.errors import InvalidInput
from wherry.spark.pipelines.cluster import shipped
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.sessions.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTERS = ("local", "spark://", "sc://")
LOOPBACK = ("127.0.0.1", "localhost")

LOG4J = Path(__file__).with_name("log4j.properties")
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
}


def conf_of(master: str) -> dict[str, str]:
    """Return the settings that a session on this master needs besides those of `session`."""
    if not master.startswith(MASTERS):
        raise InvalidInput("master", master, "local[*], local[2], spark://host:7077 or sc://host:15002")
    if master.startswith("sc://"):
        return {}
    conf = dict(QUIET)
    if master.startswith("spark://"):
        conf |= {"spark.driver.memory": "1g", "spark.executor.memory": "512m", **shipped()}
        if master.removeprefix("spark://").rpartition(":")[0] in LOOPBACK:
            conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf


@contextmanager
def opened(
    name: str, master: str, address: BrokerAddress, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a session until the end of the `with`. The session has the broker's key and sends it to the tasks."""
    chosen = {**conf_of(master), **(conf or {})}
    if address.key is not None:
        os.environ["WHERRY_KEY"] = address.key
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise Spark warns about the name of this machine
    if address.ca is not None:
        os.environ["WHERRY_CA"] = address.ca
    spark = session(name, master=master, conf=chosen)
    try:
        yield spark
    finally:
        spark.stop()
