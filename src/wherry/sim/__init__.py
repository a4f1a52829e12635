"""The other world: the real broker on a seeded clock and a seeded disk that lies, tears and dies."""
