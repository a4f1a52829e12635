"""The mesh of a node that serves: its configuration, its dialling, and the run of its data."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from wherry.broker.port.port import BrokerPort
from wherry.client.link.address import Address
from wherry.client.native.session import NativeSession
from wherry.client.native.transport import NativeTransport
from wherry.mesh.flow.links import is_among
from wherry.model.errors import InvalidInput, Unavailable
from wherry.node.config import MeshSection
from wherry.node.mesh.at_peer import Backlog
from wherry.node.mesh.mesh import NodeMesh
from wherry.node.mesh.settings import MeshSettings

RUN_FILE = "mesh-run"
TIMEOUT_S = 15.0


class NativeDial:
    """The way to a peer: the native wire, as the Python client speaks it."""

    def __init__(self, url: str, key: str | None, tls: ssl.SSLContext | None) -> None:
        self._transport = NativeTransport(Address.parse(url), key, tls=tls, wire="native", timeout_s=TIMEOUT_S)

    async def session(self) -> NativeSession:
        """See `Dialled`."""
        session = await self._transport.ready()
        if session is None:
            raise Unavailable("the peer does not speak the native wire")
        return session

    async def close(self) -> None:
        """See `Dialled`."""
        await self._transport.close()


@asynccontextmanager
async def meshing(broker: BrokerPort, section: MeshSection, data: Path, url: str) -> AsyncIterator[NodeMesh]:
    """Keep the links of a node while the `async with` lasts."""
    assert section.node is not None
    tls = None if section.ca is None else _trusting(section.ca)
    fixed = section.peers if section.hub is None else (section.hub,)
    trusted = section.trusted if section.trusted or section.key is not None else None
    settings = MeshSettings(
        node=section.node,
        role="hub" if section.hub is None else "leaf",
        addresses=fixed,
        discover=section.discover,
        trusted=trusted,
        announce_s=section.announce_s,
        backlog=Backlog(section.backlog_messages, section.backlog_bytes),
    )

    def dial(to: str) -> NativeDial:
        # A record of system.peers is written by any client that may publish there: it must not get the key.
        may_have_key = to in fixed or is_among(to, section.trusted)
        return NativeDial(to, section.key if may_have_key else None, tls)

    mesh = NodeMesh(broker, settings, run_of(data), section.url or url, dial)
    async with mesh.open():
        yield mesh


def _trusting(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as fault:
        raise InvalidInput("mesh.ca", path, f"a file of certificates ({fault})") from None


def run_of(data: Path) -> str:
    """Return what identifies the data of a directory; made once, and durable before it is used.

    Peers remember offsets together with it: data that begins anew must not have the offsets of data that is lost.
    """
    path = data / RUN_FILE
    if path.exists():
        return path.read_text("ascii").strip()
    run = secrets.token_hex(4)
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(run)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(data, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return run
