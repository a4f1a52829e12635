"""Reads of the state that change nothing: statistics, fates, ranges of a log, the audit of the simulator."""
