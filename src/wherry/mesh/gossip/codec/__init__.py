"""The bytes of gossip: packets, messages of a state exchange, and the key on them."""
