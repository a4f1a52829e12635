"""The journal on a local disk: its files, the writer, the scan at opening, and space reserved for checkpoints."""
