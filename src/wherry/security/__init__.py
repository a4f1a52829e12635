"""Keys and rights, signatures, and TLS. Knows no wire and no broker."""
