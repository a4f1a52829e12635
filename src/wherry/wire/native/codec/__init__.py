"""The frames of the native wire as bytes and values; no socket, no clock. Servers and clients use the same code."""
