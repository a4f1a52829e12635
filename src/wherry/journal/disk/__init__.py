"""The journal on a local disk: the files, who writes and who scans them, and the room kept for them."""
