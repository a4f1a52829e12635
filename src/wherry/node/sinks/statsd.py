"""statsd over UDP: counters as differences since the last flush, gauges as they are, labels as tags (DogStatsD).

| option | default | |
|---|---|---|
| `host`, `port` | 127.0.0.1, 8125 | where to |
| `prefix` | empty | before every name |
| `packet_bytes` | 1432 | the most in one packet: an Ethernet frame |
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wherry.node.sinks.sink import MetricSample, number, option

_UNSAFE = re.compile(r"[,|#:@\s]")


class Statsd:
    """A socket and what was sent before."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._where: Any = None
        self._seen: dict[str, float] = {}

    def open(self, options: Mapping[str, str]) -> None:
        """See `Sink`."""
        self._prefix = option(options, "prefix", "")
        self._packet_bytes = number(options, "packet_bytes", 1_432)
        host, port = option(options, "host", "127.0.0.1"), number(options, "port", 8_125)
        # Not connected, so that a server that is down for a while causes no error.
        kind, *_, self._where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(kind, socket.SOCK_DGRAM)

    def flush(self, samples: Sequence[MetricSample]) -> None:
        """See `Sink`. Packets may get lost, and their counts with them, as with any statsd client."""
        assert self._socket is not None
        packet = b""
        for line in self._lines(samples):
            if len(line) > self._packet_bytes:
                continue
            if packet and len(packet) + 1 + len(line) > self._packet_bytes:
                self._socket.sendto(packet, self._where)
                packet = b""
            packet += b"\n" + line if packet else line
        if packet:
            self._socket.sendto(packet, self._where)

    def close(self) -> None:
        """See `Sink`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _lines(self, samples: Sequence[MetricSample]) -> Iterator[bytes]:
        seen: dict[str, float] = {}
        for sample in samples:
            tags = ",".join(f"{name}:{_UNSAFE.sub('_', value)}" for name, value in sample.labels.items())
            tail = f"|#{tags}" if tags else ""
            name = self._prefix + sample.name
            if sample.kind == "gauge":
                yield f"{name}:{sample.value:.15g}|g{tail}".encode()
                continue
            totals = (
                {name: sample.value}
                if sample.kind == "counter"
                else {
                    f"{name}_count": float(sample.count),
                    f"{name}_sum": sample.value,
                }
            )
            for each, total in totals.items():
                seen[each + tail] = total
                more = total - self._seen.get(each + tail, 0.0)
                if more:
                    yield f"{each}:{more if more > 0 else total:.15g}|c{tail}".encode()
        self._seen = seen
