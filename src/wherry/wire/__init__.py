"""Wires: how the world outside the process speaks to the broker. One folder each; none imports another."""
