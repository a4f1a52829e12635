"""Was every promise kept? Checkers read the history of a run, and nothing of the broker."""
