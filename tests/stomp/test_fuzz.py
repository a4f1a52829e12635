"""Some thousands of the inputs of `python -m tests.stomp.fuzz`, which takes a million."""

from __future__ import annotations

import pytest

from tests.stomp.fuzz import tried


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("first", range(0, 10_000, 1_000))
def test_only_the_protocol_error_comes_of_odd_bytes(first):
    for seed in range(first, first + 1_000):
        tried(seed)
