"""Calls that the node makes: messages to webhooks, outcomes to callbacks."""
