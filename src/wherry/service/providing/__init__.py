"""The side of the provider: limits, running methods, statistics, the wire and REST."""
