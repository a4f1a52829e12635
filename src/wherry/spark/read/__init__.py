"""The readers of topics for Spark: batch and streaming."""
