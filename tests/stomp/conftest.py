"""One node for the tests that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.stomp.raw import Raw
from tests.stomp.serving import running
from wherry.node.node import Node

_numbers = count()


@pytest.fixture(scope="session")
def stomp_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("stomp")) as node:
        yield node


@pytest.fixture
def port(stomp_node: Node) -> int:
    assert stomp_node.stomp_port is not None
    return stomp_node.stomp_port


@pytest.fixture
def name() -> str:
    """Return a name that no other test has."""
    return f"n{next(_numbers)}"


@pytest.fixture
def client(port: int) -> Iterator[Raw]:
    """Yield a client of 1.2 that is logged in."""
    with Raw(port) as raw:
        raw.connect()
        yield raw
