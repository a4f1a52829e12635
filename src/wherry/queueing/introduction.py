"""The name and the abilities that the server reports to clients and tools."""

from __future__ import annotations

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
PROPERTIES = {
    # Clients read these two to choose between readings of the specification: this server follows RabbitMQ's.
    "product": "RabbitMQ",
    "version": "3.13.7",
    "platform": "Wherry",
    "information": "Wherry, a message queue that speaks AMQP 0-9-1 as RabbitMQ does",
    "copyright": "",
    "cluster_name": "wherry",
    "capabilities": CAPABILITIES,
}
