"""Bytes that no client would send: only the protocol error may come of them.

    python -m tests.stomp.fuzz --count 1000000 --seed 1

Each input is made of parts of frames, whole ones, odd ones and noise, is fed in pieces of any size, and must give
frames, nothing, or a `StompFault`; and what is held of the input stays within the bound. What it gives does not depend
on the pieces.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from wherry.wire.stomp import translate
from wherry.wire.stomp.codec import COMMANDS, HEAD_BYTES_MAX, VERSIONS, Frame, FrameReader, StompFault
from wherry.wire.stomp.destinations import parsed
from wherry.wire.stomp.greeting import agreed_beats, chosen_version

BODY_MAX = 4_096

PARTS = (
    *(command.encode() for command in sorted(COMMANDS)),
    *(b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\r", b"\0", b":", b"\\", b"\\n", b"\\c", b"\\\\", b"\\r", b"\\t"),
    *(b"destination:/queue/a\n", b"destination:/exchange/%2F/%\n", b"destination:/temp-queue/\n", b"destination:x\n"),
    *(b"content-length:3\n", b"content-length:0\n", b"content-length:99999999999\n", b"content-length:-1\n"),
    *(b"content-length:\xd9\xa3\n", b"accept-version:1.2,9\n", b"heart-beat:1,a\n", b"heart-beat:999999999999999,1\n"),
    *(b"persistent:true\n", b"priority:300\n", b"priority:9\n", b"timestamp:x\n", b"expires:-5\n", b"expires:1\n"),
    *(b"wherry-due:2030-01-01T00:00:00Z\n", b"wherry-due:9999-12-31T23:59:59-23:59\n", b"wherry-due:1e9\n"),
    *(b"reply-to:/temp-queue/x\n", b"x-message-ttl:5\n", b"type:" + b"t" * 300 + b"\n", b"n" * 300 + b":v\n"),
    *(b"SEND\ndestination:/queue/a\n\nbody\0", b"CONNECT\n\n\0", b"SEND\ncontent-length:4\n\na\0\0b\0"),
    *(b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", "ü".encode(), b"a" * 40, b"x" * 5000),
)


def made(chance: random.Random) -> bytes:
    """Make one input."""
    parts = [
        chance.choice(PARTS) if chance.random() < 0.93 else chance.randbytes(4) for _ in range(chance.randint(1, 12))
    ]
    data = b"".join(parts)
    if data and chance.random() < 0.2:
        place = chance.randrange(len(data))
        data = data[:place] + chance.randbytes(1) + data[place + 1 :]
    return data


def fed(data: bytes, version: str, size: int) -> tuple[list[object], int]:
    """Return what a reader gives, and how much it held at most."""
    reader = FrameReader(body_max=BODY_MAX)
    reader.version = version
    found: list[object] = []
    most = 0
    for at in range(0, len(data), size):
        for each in reader.feed(data[at : at + size]):
            found.append((each.command, each.headers, each.body) if isinstance(each, Frame) else "fault")
            if isinstance(each, Frame):
                understood(each)
        most = max(most, reader.partial_bytes)
    return found, most


def understood(frame: Frame) -> None:
    """Do all that is done with a frame before the session acts on it."""
    headers = frame.headers
    for step in (
        lambda: parsed(headers["destination"]),
        lambda: translate.message_lines("", "q", translate.raw_properties(headers, 1_000), "1.2"),
        lambda: translate.due_ms(headers),
        lambda: chosen_version(headers.get("accept-version")),
        lambda: agreed_beats(headers.get("heart-beat")),
    ):
        try:
            step()
        except StompFault:
            pass
        except KeyError as missing:
            assert missing.args == ("destination",), missing


def tried(seed: int) -> None:
    """Try one input, in several pieces: whatever is wrong with it is raised."""
    chance = random.Random(seed)
    data, version = made(chance), chance.choice(VERSIONS)
    whole, most = fed(data, version, len(data))
    parts, most_of_parts = fed(data, version, chance.choice((1, 2, 3, 17)))
    assert whole == parts, (seed, data, whole, parts)
    assert max(most, most_of_parts) <= HEAD_BYTES_MAX + BODY_MAX + len(data), (seed, most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    for seed in range(given.seed, given.seed + given.count):
        try:
            tried(seed)
        except Exception:
            print(f"seed {seed}: {made(random.Random(seed))!r}", file=sys.stderr)
            raise
    print(
        f"{given.count} inputs from seed {given.seed} on: nothing but protocol errors; {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
