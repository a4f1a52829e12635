"""The clients of a run: producers, consumers, operators, readers of the log."""
