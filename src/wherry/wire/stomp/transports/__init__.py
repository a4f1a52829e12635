"""The transports of STOMP sessions: TCP and TLS, WebSocket, long polling."""
