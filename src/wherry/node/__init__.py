"""The process: configuration, logs, start and stop of a broker behind its wires."""
