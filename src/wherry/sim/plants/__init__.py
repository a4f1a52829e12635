"""Planted bugs: each must be found, which proves that its checker works."""
