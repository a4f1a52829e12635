"""Work in the background: leases that end, memory, checkpoints, the length of the journal, backfill."""
