"""The simulator: the real broker, its wires and clients on a clock, a disk and a network made from one seed."""
