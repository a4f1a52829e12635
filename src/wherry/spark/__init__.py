"""Topics as DataFrames: the Spark data source `wherry`, over Arrow Flight. Only this package imports pyspark.

Spark finds `spark.read.format("wherry")` by itself; `session` creates a Spark session with settings that suit it.
"""

from wherry.spark.queries.reporter import report_queries
from wherry.spark.sessions.checkpoints import clear_unbegun
from wherry.spark.sessions.java import java_home
from wherry.spark.sessions.session import session, steady
from wherry.spark.sessions.state import STATEFUL, check_stateful
from wherry.spark.table import table
from wherry.spark.views import register_topics

__all__ = [
    "STATEFUL",
    "check_stateful",
    "clear_unbegun",
    "java_home",
    "register_topics",
    "report_queries",
    "session",
    "steady",
    "table",
]
