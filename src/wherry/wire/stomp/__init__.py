"""STOMP 1.0, 1.1 and 1.2: a second face of the virtual hosts that AMQP has."""
