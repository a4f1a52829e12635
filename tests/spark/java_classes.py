"""Spark's classes in the form in which Java shares them: made once, kept under `build/`.

Half the processor time of a Spark that runs for seconds is spent on reading and checking classes. A Java that finds
this file maps them instead; a Java that does not find it, or that it does not fit, reads its classes as ever.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pyspark

from tests.environments import JAVA_CLASSES, JAVA_OPTIONS, once
from wherry.spark.sessions.java import java_home

_DRIVER = """
from wherry.spark.sessions.session import session

made = session("classes", master="local[2]", conf={"spark.log.level": "ERROR"})
rows = made.createDataFrame([(n, str(n)) for n in range(9)], "n LONG, text STRING")
rows.groupBy("text").count().orderBy("text").collect()
rows.mapInArrow(lambda batches: batches, "n LONG, text STRING").collect()
stream = made.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True).start()
stream.awaitTermination()
gateway = made.sparkContext._gateway
made.stop()
gateway.shutdown()
gateway.proc.stdin.close()  # Java writes the file when it ends
gateway.proc.wait()
"""


def make_java_classes() -> None:
    """Make the file if it is missing, or of another Java or Spark."""
    home = java_home()
    if home is None:
        return
    release = home / "release"
    pins = (
        f"{pyspark.__version__} {os.environ.get('SPARK_HOME')} {home} {release.read_text() if release.exists() else ''}"
    )

    def make() -> None:
        options = JAVA_OPTIONS.replace("SharedArchiveFile", "ArchiveClassesAtExit")
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
        subprocess.run([sys.executable, "-c", _DRIVER], env=environment, capture_output=True, check=True)

    once(JAVA_CLASSES.parent, pins, make)
