"""What stands outside needs of a broker, as interfaces, a module for each subject."""
