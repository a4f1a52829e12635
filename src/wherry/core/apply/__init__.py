"""Durable state changes here and nowhere else: an entry of the journal moves the state one step."""
