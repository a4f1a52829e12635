"""Some thousands of the inputs of `python -m tests.stomp.fuzz`; the million in `make test-long`."""

from __future__ import annotations

import pytest

from tests.stomp.fuzz import tried


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_only_the_protocol_error_comes_of_odd_bytes(count):
    for seed in range(count):
        tried(seed)
