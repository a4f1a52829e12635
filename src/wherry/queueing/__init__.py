"""Queues, exchanges and virtual hosts over topics and routes: what the wires of queue clients share."""
