"""The bounds of one server: every buffer, queue and wait has its number here."""

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
        Under way at a time; requests that wait for messages are not counted here, but under `waits`.
    waits
        Long polls, streams and waits for an outcome at a time.
    head_bytes, body_bytes
        Size of one request.
    bodies_bytes
        Memory for the bodies of all requests under way, and the same again for answers that clients have not read yet.
    head_s, body_s, idle_s, write_s
        Time for a head to be whole, for a body to be whole (and a second more for each `body_pace` bytes), between
        requests, and for a client to read its answer.
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
