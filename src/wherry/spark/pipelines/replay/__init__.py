"""`replay`: messages of a log or an archive published again, and the ledger that makes a job publish once."""
