"""Segments: their files, what is read of them, and which are written anew."""
