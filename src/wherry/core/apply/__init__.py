"""Apply journal entries. Durable state changes here and nowhere else."""
