"""The layout of frames: what reader and writer share.

    0     type: 1 method, 2 content header, 3 content body, 8 heart-beat
    1     channel, 2 bytes
    3     size of the payload, 4 bytes
    7     payload
    7+n   frame end, always 0xCE

A content header's payload is class id (2 bytes), weight (2 bytes, always 0), size of the body (8 bytes), properties.
"""

from __future__ import annotations

import struct

HEADER = b"AMQP\x00\x00\x09\x01"
"""The protocol header: a client sends it first, and a server answers any other header with it."""

GREETINGS = (HEADER, b"AMQP\x01\x01\x00\x09")
"""Headers that clients begin with: that of this version, or that of the version before, which some still send."""

METHOD, CONTENT_HEADER, CONTENT_BODY, HEARTBEAT = 1, 2, 3, 8

END = 0xCE
END_BYTE = b"\xce"

OVERHEAD = 8
"""Bytes of a frame beside its payload."""

FRAME_MIN = 4096
"""The size of frames that every peer must accept, also before the sizes are agreed upon."""

BASIC = 60
"""The only class that has contents."""

DELIVER_WORD = BASIC << 16 | 60
ACK_WORD = BASIC << 16 | 80
NACK_WORD = BASIC << 16 | 120
"""Class id and method id of the frequent methods as one number."""

HEAD = struct.Struct(">BHI")
"""Type, channel and size of the payload."""

CONTENT_HEAD = struct.Struct(">BHIHHQ")
"""The same for a content header, then class id, weight and size of the body."""
