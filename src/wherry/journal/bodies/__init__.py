"""The bodies of messages: recent ones in memory, older ones in segments, which any Arrow reader can open."""
