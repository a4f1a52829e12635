"""Arrow Flight: whole columns in and out, for Spark and other clients that use Arrow."""
