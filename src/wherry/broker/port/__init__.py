"""The calls that the code above the broker may use, as interfaces: a module for each subject."""
