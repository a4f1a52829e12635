"""What one server takes at most: every buffer, queue and wait has its number here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of an HTTP server.

    Parameters
    ----------
    connections
        Open at a time; one more is answered 503 and closed.
    requests
        Under way at a time, those that wait for messages (`waits`) not counted.
    waits
        Long polls, streams and waits for an outcome at a time.
    head_bytes, body_bytes
        Of one request.
    bodies_bytes
        Of all requests under way together; and as much of answers that their clients have not read yet.
    head_s, body_s, idle_s, write_s
        For a head to be whole, for a body to be whole (and for each further `body_pace` bytes a second more), between
        requests, and for a reader that does not read.
    """

    connections: int = 10_000
    requests: int = 1_024
    waits: int = 10_000
    head_bytes: int = 32 << 10
    body_bytes: int = 64 << 20
    bodies_bytes: int = 512 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    body_pace: int = 100_000
    idle_s: float = 75.0
    write_s: float = 30.0
