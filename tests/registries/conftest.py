"""Servers that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registries.name_server import NameServer
from tests.registries.zookeeper_server import ZooKeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory) -> Iterator[ZooKeeper]:
    """Return a server that each test leaves running."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def name_server(tmp_path_factory) -> Iterator[NameServer]:
    """Return a server that each test leaves running."""
    server = NameServer(tmp_path_factory.mktemp("names"))
    server.write()
    server.start()
    yield server
    server.kill()
