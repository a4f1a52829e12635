"""`backfill`: publishes messages from files to a topic, each once."""
