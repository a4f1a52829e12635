"""Data structures of the state: sets of offsets, ordered runs, tables by offset. No object per message."""
