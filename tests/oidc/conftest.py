"""The provider as a process, and nodes that take its tokens."""

from __future__ import annotations

import pytest

from tests.oidc.provider import provider


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    """Return a provider that runs."""
    with provider(tmp_path_factory.mktemp("provider")) as found:
        yield found
