"""The work behind `wherry pipeline`: streaming pipelines, the archive, reports, and a Spark cluster for trials."""
