"""Reads segments as files where the broker is on this machine, so that a scan of history does not load the broker.

Messages that the broker has in memory, and files that cannot be opened here, are read over Flight. Another machine may
stand behind a local address, and its files be other files: the checksums of their blocks show that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from wherry.journal.bodies.segments.nearby import Nearby
from wherry.journal.bodies.window import SegmentGone
from wherry.journal.disk.real_files import read_part
from wherry.model.calls.where import Where
from wherry.model.errors import Corrupt

if TYPE_CHECKING:
    from wherry.spark.link import FlightLink

_far: set[str] = set()
"""Addresses of brokers whose folder does not exist on this machine."""


def is_near(url: str) -> bool:
    """Return whether the address suggests that the broker runs on this machine.

    Examples
    --------
    >>> is_near("grpc://127.0.0.1:7072"), is_near("grpc+tls://[::1]:7072"), is_near("grpc://localhost:7072")
    (True, True, True)
    >>> is_near("grpc://10.0.0.7:7072"), is_near("grpc://broker:7072")
    (False, False)
    """
    place = urlsplit(url)
    if place.scheme == "grpc+unix" or place.hostname == "localhost":
        return url not in _far
    try:
        return ipaddress.ip_address(place.hostname or "").is_loopback and url not in _far
    except ValueError:
        return False


def batches(link: FlightLink, ticket: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Return the batches of a part of a log in ascending order, like `FlightLink.once`."""
    where = msgspec.convert(ticket.get("where", {}), Where)
    at, stop = int(ticket.get("start", 0)), int(ticket["stop"])
    asked = {name: value for name, value in ticket.items() if name in ("topic", "partition", "strict")}
    while at < stop:
        found = msgspec.convert(link.ask("nearby", {**asked, "start": at, "stop": stop}), Nearby)
        if found.in_files and not Path(found.folder).is_dir():
            _far.add(link.url)
            yield from link.once({**ticket, "start": at})
            return
        if found.in_files:
            try:
                read = partial(_read, Path(found.folder))
                for batch, reached in found.window().batches(read, ticket["columns"], where):
                    if batch.num_rows:
                        yield batch
                    at = reached
                at = found.stop
            except (SegmentGone, OSError, Corrupt):
                pass  # the segment was rewritten, or may not be opened here: read from the broker
        if at < found.stop:
            yield from link.once({**ticket, "start": at, "stop": found.stop})
        at = found.stop


def _read(folder: Path, path: str, offset: int, length: int) -> pa.Buffer:
    return read_part(folder / path, offset, length)
