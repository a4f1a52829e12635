"""`archive`: the log of a topic as Parquet files, the manifest that lists them, and reads over both."""
