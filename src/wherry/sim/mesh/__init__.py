"""Runs of several nodes with `flow` topics: real brokers and links in one virtual world."""
