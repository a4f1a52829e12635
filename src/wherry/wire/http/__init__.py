"""HTTP/1.1 on one port: REST, Arrow, Avro, long polling, server-sent events.

bytes ──► connection (parses heads, gathers bodies, keeps bounds) ──► routing ─► endpoint ──► broker
bytes ◄── connection (back-pressure, keep-alive) ◄── Response or Stream ◄──────────┘
"""
