"""Clients by the Python client: its native session, and its HTTP connection, on the simulated network."""
