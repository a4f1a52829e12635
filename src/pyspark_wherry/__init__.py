"""What PySpark looks for by this name, so that `format("wherry")` needs no registration."""

from wherry.spark.source import DefaultSource

__all__ = ["DefaultSource"]
