"""`run`: a pipeline file as streaming queries."""
