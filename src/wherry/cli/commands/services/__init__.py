"""The commands about services that peers offer each other."""
