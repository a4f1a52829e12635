"""A module for each thing that users do. What is heavy is imported inside a command, so that `--help` is quick."""
