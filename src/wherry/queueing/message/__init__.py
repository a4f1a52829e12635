"""A message of a queue client: its properties, its envelope, and its columns in a topic."""
