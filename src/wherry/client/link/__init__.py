"""How a client reaches its broker: requests out, whole answers back, errors as the broker raised them."""
