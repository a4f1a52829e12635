"""A real name server (NSD) on a loopback port, with records that a test changes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import time
from pathlib import Path

from tests.ports import free_port
from tests.registries.installing import PATHS, Process, need

ZONE = "shop.test"

_CONFIGURATION = """
server:
  ip-address: 127.0.0.1@{port}
  port: {port}
  username: ""
  chroot: ""
  zonesdir: "{folder}"
  database: ""
  pidfile: "{folder}/nsd.pid"
  xfrdfile: "{folder}/xfrd.state"
  xfrdir: "{folder}"
  zonelistfile: "{folder}/zone.list"
  server-count: 1
remote-control:
  control-enable: no
zone:
  name: {zone}
  zonefile: zone
"""

_BEGINNING = """$ORIGIN {zone}.
$TTL 0
@ SOA ns admin {serial} 3600 600 86400 0
@ NS ns
ns A 127.0.0.1
"""

PATIENCE_S = 60


class NameServer:
    """A name server for the zone `shop.test`."""

    def __init__(self, folder: Path) -> None:
        need(lambda: shutil.which("nsd", path=PATHS) is not None, "nsd")
        self._folder, self._serial = folder, 0
        self.port = free_port()
        self._process: Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def write(self, *records: str) -> None:
        """Set the records of the zone, and return when they are served."""
        self._serial += 1
        path = self._folder / "zone"
        new = path.with_name("zone.new")
        new.write_text(_BEGINNING.format(zone=ZONE, serial=self._serial) + "".join(f"{each}\n" for each in records))
        os.utime(new, (time.time() + self._serial,) * 2)  # it looks at the time of the file, in seconds
        new.rename(path)
        if self._process is not None:
            self._process.signal(signal.SIGHUP)
            self._served()

    def start(self) -> None:
        """Start the server, and return when it answers."""
        configuration = self._folder / "nsd.conf"
        configuration.write_text(_CONFIGURATION.format(port=self.port, folder=self._folder, zone=ZONE))
        program = shutil.which("nsd", path=PATHS)
        assert program is not None
        self._process = Process([program, "-d", "-c", str(configuration)], self._folder / "log")
        self._served()

    def kill(self) -> None:
        """End the server at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _served(self) -> None:
        """Wait until the zone is served as it was written last."""
        deadline = time.monotonic() + PATIENCE_S
        while self._soa() != self._serial:
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.02)

    def _soa(self) -> int | None:
        """Return the serial number of the zone as it is served, by a question of our own."""
        name = b"".join(bytes([len(part)]) + part.encode() for part in ZONE.split(".")) + b"\0"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(1)
            try:
                asking.sendto(
                    struct.pack("!6H", 7, 0, 1, 0, 0, 0) + name + struct.pack("!2H", 6, 1), ("127.0.0.1", self.port)
                )
                answer = asking.recv(4_096)
            except OSError:
                return None
        if struct.unpack("!H", answer[6:8])[0] != 1:
            return None
        # The answer's record: its serial number stands before the four other numbers that end it.
        at = 12 + len(name) + 4
        length = struct.unpack("!H", answer[at + 10 : at + 12])[0]
        end = at + 12 + length
        return int(struct.unpack("!I", answer[end - 20 : end - 16])[0])
