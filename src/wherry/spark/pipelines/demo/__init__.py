"""`demo`: broker, load, pipeline and consumers for a minute, and a chart of the rates."""
