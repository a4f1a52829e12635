"""`wherry.scan`: a topic as a lazy Polars frame, a DuckDB relation or Arrow batches, without Spark.

It uses modules of `wherry.spark` that need no Spark (the link, the files and manifest of an archive), and never imports
pyspark; polars and duckdb are imported when they are asked for.
"""
