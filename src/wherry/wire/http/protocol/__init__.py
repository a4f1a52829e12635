"""HTTP/1.1: the listener, connections, heads and bodies; endpoints are elsewhere (`endpoints`)."""
