"""Reads of the state that change nothing: statistics, messages by id, kinds of dead letters, the audit."""
