"""Calls that the node makes: messages to those who subscribed with a webhook, outcomes to those who asked for them."""
