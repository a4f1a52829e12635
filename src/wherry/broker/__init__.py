"""The broker as a library, in process: the core and the journal joined by group commit."""
