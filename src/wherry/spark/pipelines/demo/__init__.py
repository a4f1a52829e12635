"""`demo`: broker, load, pipeline and consumers for a minute, and a picture of it."""
