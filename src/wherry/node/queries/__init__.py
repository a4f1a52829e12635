"""Streaming queries of Spark that report themselves to this node: kept in memory, shown over HTTP and in `/metrics`."""
