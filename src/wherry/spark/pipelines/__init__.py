"""What `wherry pipeline` does: streaming pipelines, the archive, reports, and a Spark cluster to try them on."""
