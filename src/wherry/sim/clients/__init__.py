"""Clients of a run: producers, consumers, operators, readers of the log, clients of wires."""
