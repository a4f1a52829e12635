"""AMQP 0-9-1 in bytes, without sockets: a reader that turns bytes into events, writers that turn values into bytes."""
