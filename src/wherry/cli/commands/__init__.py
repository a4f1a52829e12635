"""A module for each thing that people do. What is heavy is imported inside a command, so that `--help` is quick."""
