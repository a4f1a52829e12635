"""What Spark needs around a query: its Java and home, settings, packages for state, checkpoints that can start."""
