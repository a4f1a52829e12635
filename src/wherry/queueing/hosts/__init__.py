"""Virtual hosts, with their queues, exchanges and bindings."""
