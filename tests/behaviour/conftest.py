"""Fixtures of the behaviour tests; what they are made of is in `world`."""

from pathlib import Path

import pytest

from tests.behaviour.world import RESTARTS, Home, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    """Return a virtual clock, shared with the broker of `home`."""
    return VirtualClock()


@pytest.fixture
def home(tmp_path: Path, clock: VirtualClock) -> Home:
    """Return a directory for a broker, and the life cycle of that broker."""
    return Home(tmp_path, clock)


@pytest.fixture(params=[*(pytest.param(each, marks=pytest.mark.more) for each in RESTARTS[:-1]), RESTARTS[-1]])
def how(request: pytest.FixtureRequest) -> str:
    """Return each way to restart."""
    return str(request.param)
