"""Decisions: from a call and the state to the operations of one journal entry, or an error. Nothing durable changes."""
