"""What a load or a save was asked for: options as text to values, those of Kafka included."""
