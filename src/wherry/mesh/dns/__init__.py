"""Instances from DNS: records are read again as they expire. Comes with `wherry[dns]`; announces nothing."""
