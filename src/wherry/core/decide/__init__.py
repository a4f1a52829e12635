"""Decisions: functions from a call and the state to journal entries, or to an error. They change nothing durable."""
