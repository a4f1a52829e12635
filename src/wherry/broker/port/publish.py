"""Adding messages. A part of the port, see `port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wherry.broker.commit.gathering import Gathering
from wherry.model.calls.publish import CommittedParts, Published, PublishOptions
from wherry.model.errors import WherryError
from wherry.model.schema import Publishable


class PublishPort(Protocol):
    """Adds messages. The docstrings of `Broker` describe each call; here is only what a call takes and returns."""

    async def publish(self, topic: str, messages: Publishable, options: PublishOptions | None = None) -> Published: ...

    async def publish_route(
        self, route: str, messages: Publishable, *, routing_key: str = "", headers: dict[str, str] | None = None
    ) -> dict[str, Published]: ...

    @property
    def gathering(self) -> Gathering: ...

    async def submit(
        self, topic: str, messages: Publishable, options: PublishOptions
    ) -> tuple[int, Published | WherryError]: ...

    def count_refusal(self, topic: str, fault: WherryError) -> None: ...

    async def reserve(self, topic: str) -> None: ...

    async def stage(self, key: str, topic: str, messages: Publishable, *, partition: int | None = None) -> None: ...

    async def submit_stage(
        self, key: str, topic: str, messages: Publishable, *, partition: int | None = None
    ) -> int: ...

    async def commit(self, key: str, stages: Sequence[str] | None = None) -> CommittedParts: ...

    async def abort(self, key: str) -> None: ...

    def is_stored(self, position: int) -> bool: ...

    async def stored(self, position: int) -> None: ...

    async def stored_so_far(self) -> None: ...
