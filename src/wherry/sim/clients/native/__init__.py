"""Clients of the native wire: the session of the Python client on the simulated network."""
