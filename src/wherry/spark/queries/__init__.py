"""Reports of running queries to a node. A node that is down never disturbs a query."""
