"""The command line: `wherry …`. Nothing here is imported by anything else."""
