"""The native wire: one connection for publishes, confirms, pushed messages, settles and all other calls."""
