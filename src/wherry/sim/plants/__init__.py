"""Bugs planted on purpose: each must be found, or the checker that should find it is worth nothing."""
