"""What a run stands on: virtual time, an event loop without a machine, a disk that loses power."""
