"""`pipeline` and `demo`: the commands that run on Spark."""
