"""One node for the tests of the C client that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.integration.test_node import Running

_numbers = count()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a node."""
    with Running(tmp_path_factory.mktemp("c") / "data") as node:
        yield node.url


@pytest.fixture
def topic() -> str:
    """Return a name that no other test has."""
    return f"topic-{next(_numbers)}"
