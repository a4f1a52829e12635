"""Calls that wait: pulls for messages, readers of a log for new ones, producers for the fate of theirs."""
