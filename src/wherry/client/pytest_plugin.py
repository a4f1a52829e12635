"""A pytest plugin: the fixture `wherry_broker`, a broker in the test's own process whose time the test decides.

It comes with `pip install wherry`; nothing has to be imported or started.

>>> def test_a_job_is_tried_again(wherry_broker):
...     wherry_broker.create_topic("jobs")
...     wherry_broker.subscribe("jobs", "workers")
...     wherry_broker.publish("jobs", [b"hello"])
...     wherry_broker.pull("jobs", "workers").nack(delay_ms=60_000)
...     wherry_broker.clock.advance(60)
...     assert wherry_broker.pull("jobs", "workers").payloads() == [b"hello"]

Code under test that connects by itself is given the address `wherry_broker.listen()`; async code can use
`wherry.embedded(clock=wherry.VirtualClock())` in its own event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from wherry.client.sync.embedded import SyncEmbedded


@pytest.fixture
def wherry_broker() -> Iterator[SyncEmbedded]:
    """An empty broker in memory, as a sync client of it; `wherry_broker.clock.advance(seconds)` moves its time."""
    from wherry.client.clock import VirtualClock  # noqa: PLC0415  loaded where it is used, not by every test run
    from wherry.client.sync.embedded import embedded_sync  # noqa: PLC0415

    with embedded_sync(clock=VirtualClock()) as client:
        yield client
