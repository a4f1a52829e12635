"""One call, its answer, then a power cut: what the answer promised must hold."""
