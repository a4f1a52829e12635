"""Topics as DataFrames: the Spark data source `wherry`, over Arrow Flight. The only place that imports pyspark.

`spark.read.format("wherry")` finds it by itself; `session` makes a Spark session with the settings that it likes.
"""

from wherry.spark.java import java_home
from wherry.spark.session import session, steady

__all__ = ["java_home", "session", "steady"]
