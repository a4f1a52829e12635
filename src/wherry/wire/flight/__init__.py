"""Arrow Flight: whole columns in and out, for Spark and for whoever reads Arrow."""
