"""`replay`: publishes messages of a log or an archive again; the ledger makes each job publish once."""
