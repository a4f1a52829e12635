"""The writers of topics for Spark, exactly once."""
