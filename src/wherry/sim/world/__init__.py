"""The simulated machine: virtual time, an event loop, a network, a disk that loses power."""
