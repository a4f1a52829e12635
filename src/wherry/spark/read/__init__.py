"""Reads of topics by Spark: batch and streaming."""
