"""AMQP 0-9-1: queues, exchanges and bindings are words of this folder, mapped onto topics, subscriptions and routes."""
