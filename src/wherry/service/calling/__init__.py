"""The side of the caller: which instance, over which connection, and how each call ended."""
