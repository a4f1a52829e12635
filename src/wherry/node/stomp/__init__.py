"""STOMP over the HTTP port: WebSockets, sessions that are polled, and a view of all sessions."""
