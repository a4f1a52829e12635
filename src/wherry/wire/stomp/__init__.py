"""STOMP 1.0, 1.1 and 1.2: clients of the same virtual hosts as AMQP has."""
