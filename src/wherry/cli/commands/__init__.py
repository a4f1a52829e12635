"""The commands, a module for each subject. Heavy modules are imported inside a command, so that `--help` is quick."""
