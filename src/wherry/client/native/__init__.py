"""The client over the native wire (docs/wire.md): one connection for everything that a client does."""
