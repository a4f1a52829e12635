"""The bodies of messages: recent ones in memory, older ones in segments that Arrow readers open."""
