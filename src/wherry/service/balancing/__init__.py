"""Which instance of a service gets the next call: pure decisions, exchangeable, without a clock or chance."""
