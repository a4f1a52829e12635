"""From a decision of the core to a durable entry: one owner of the state, group commit, and recovery."""
