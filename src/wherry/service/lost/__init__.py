"""Calls that failed, kept in a log on disk at each peer; sent again where the caller asked for it."""
