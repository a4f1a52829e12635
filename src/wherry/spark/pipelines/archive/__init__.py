"""`archive`: the log of a topic as Parquet files, the manifest that lists the files, and reads of both."""
