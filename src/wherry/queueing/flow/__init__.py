"""Messages on their way: in, out, settled, dead, in transactions."""
