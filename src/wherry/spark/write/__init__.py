"""Writes to topics by Spark, exactly once."""
