"""`backfill`: messages from files into a topic, each once."""
