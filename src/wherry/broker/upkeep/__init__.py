"""Work that nobody calls for: leases that end, memory, checkpoints, the length of the journal, backfill."""
