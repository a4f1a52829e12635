"""Checkers: each reads the history of a run, not the broker, and finds one kind of broken promise."""
