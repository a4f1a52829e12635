"""Changing what there is: topics, subscriptions, routes, keys; and the state of the broker. A part of the port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from wherry.broker.metrics.tracing import Tracer
from wherry.broker.waiting.slices import Slices
from wherry.model.calls.amendment import Amended, Amendment
from wherry.model.calls.dead import DeadFilter
from wherry.model.catalog.key import Key
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import WherryError
from wherry.model.schema import Publishable

if TYPE_CHECKING:
    from wherry.broker.metrics.metrics import Metrics


class AdministerPort(Protocol):
    """Creates, changes and deletes topics, subscriptions, routes, API keys, waiting messages and dead letters."""

    check_url: Callable[[str, str], object]

    async def create_topic(self, topic: Topic | str, /, **fields: object) -> Topic: ...

    async def delete_topic(self, name: str) -> None: ...

    async def subscribe(
        self, subscription: Subscription | str, name: str | None = None, /, **fields: object
    ) -> Subscription: ...

    async def change_subscription(self, subscription: Subscription) -> Subscription: ...

    async def unsubscribe(self, topic: str, name: str) -> None: ...

    async def cut_off(self, number: int, why: str) -> None: ...

    async def put_route(self, route: Route) -> Route: ...

    async def delete_route(self, name: str) -> None: ...

    async def bind(self, route: str, binding: Binding) -> None: ...

    async def unbind(self, route: str, binding: Binding) -> None: ...

    async def put_key(self, key: Key) -> Key: ...

    async def change_key(self, public_id: str, **changes: object) -> Key: ...

    async def alter_key(self, public_id: str, change: Callable[[Key], Key]) -> Key: ...

    async def delete_key(self, public_id: str) -> None: ...

    async def cancel(self, topic: str, *message_ids: str) -> None: ...

    async def amend(
        self,
        topic: str,
        message_id: str,
        change: Amendment | None = None,
        /,
        *,
        version: int | None = None,
        **fields: object,
    ) -> Amended: ...

    async def redrive(
        self, topic: str, wanted: DeadFilter | None = None, *, by: str = "", rate: int | None = None
    ) -> int: ...

    async def forward(
        self,
        sources: Sequence[tuple[str, DeadFilter]],
        to: Sequence[tuple[str, Publishable, bool]],
        *,
        by: str = "",
    ) -> int: ...

    async def discard(self, topic: str, wanted: DeadFilter, *, by: str = "") -> int: ...


class ConditionPort(Protocol):
    """Returns the condition of the broker itself."""

    def now_ms(self) -> int: ...

    @property
    def failure(self) -> WherryError | None: ...

    @property
    def is_closing(self) -> bool: ...

    def check_alive(self) -> None: ...

    @property
    def entry_bytes_max(self) -> int: ...

    @property
    def cache_bytes_max(self) -> int: ...

    @property
    def slices(self) -> Slices: ...

    @property
    def metrics(self) -> Metrics | None: ...

    def trace(self, tracer: Tracer) -> Callable[[], None]: ...

    def at_end_of_turn(self, send: Callable[[], None]) -> None: ...

    def clock_moved(self) -> None: ...
