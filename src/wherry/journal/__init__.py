"""The durable side: the format of entries, engines that store the journal, segments, checkpoints, bodies in memory."""
