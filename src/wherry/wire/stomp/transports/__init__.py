"""How the bytes of a STOMP session travel: TCP and TLS, WebSocket, long polling."""
