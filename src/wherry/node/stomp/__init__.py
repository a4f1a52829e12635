"""STOMP over the HTTP port: WebSockets, polled sessions, and a view of all sessions."""
