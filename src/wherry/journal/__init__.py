"""The durable side: entry format, engines that keep the journal, segments, checkpoints and the message store."""
