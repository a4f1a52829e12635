"""Handing messages out, and settling them. A part of the port, see `port`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import pyarrow as pa

from wherry.model.calls.lease import PULL_BYTES_DEFAULT, DeliveredRow, LeasePart, NamedPart, Within
from wherry.model.schema import Int64

Answered: TypeAlias = Callable[[BaseException | None], None]
"""Called once: with None when a settle is durable, or with the reason why it is refused."""


class DeliveryPort(Protocol):
    """Messages on lease, with the ways to settle them."""

    rows: list[DeliveredRow] | None
    tokens: list[int]

    @property
    def present(self) -> pa.RecordBatch: ...

    @property
    def batch(self) -> pa.RecordBatch: ...

    def __len__(self) -> int: ...

    def lease_column(self) -> Int64: ...

    def offsets(self) -> Int64: ...

    def parts(self, rows: Sequence[int] | Int64 | None = None) -> list[LeasePart]: ...

    def take_back(self) -> None: ...

    async def ack(self, rows: Sequence[int] | Int64 | None = None) -> None: ...

    async def nack(
        self, rows: Sequence[int] | Int64 | None = None, *, delay_ms: int | None = None, error: str = ""
    ) -> None: ...

    async def release(self, rows: Sequence[int] | Int64 | None = None) -> None: ...

    async def renew(self, lease_ms: int | None = None) -> None: ...


class Taker(Protocol):
    """Takes messages of a pull that waits. No method raises."""

    def wanted(self) -> int:
        """Return how many messages the pull may return now; with 0 it ends, and returns none."""

    def room(self) -> int:
        """Return how many messages it takes now, at most `wanted`; with 0 they are what the pull returns."""

    def take(self, delivery: DeliveryPort) -> None:
        """Take messages, which are durable and on lease."""


class ConsumerPort(AbstractAsyncContextManager["ConsumerPort"], Protocol):
    """One consumer of a subscription."""

    @property
    def id(self) -> str: ...

    @property
    def unsettled_messages(self) -> int: ...

    def is_joined(self) -> bool: ...

    def is_last_of_ephemeral(self) -> bool: ...

    def grant(self, messages: int) -> None: ...

    async def pull(
        self,
        messages: int = 1_000,
        *,
        bytes_max: int = PULL_BYTES_DEFAULT,
        wait_ms: int | None = 0,
        taker: Taker | None = None,
    ) -> DeliveryPort: ...

    async def close(self, error: str = "") -> None: ...


class ConsumePort(Protocol):
    """Joins and leaves subscriptions."""

    async def consumer(
        self,
        topic: str,
        subscription: str,
        consumer_id: str | None = None,
        *,
        buffer_messages: int | None = None,
        buffer_bytes: int | None = None,
        seat: str | None = None,
    ) -> ConsumerPort: ...

    def internal_consumer(self, number: int, consumer_id: str) -> ConsumerPort: ...

    async def leave(self, topic: str, subscription: str, consumer_id: str) -> None: ...

    async def purge(self, topic: str, subscription: str) -> int: ...


class SettlerPort(Protocol):
    """Ends leases, all parts of a call or none. `within`: a topic and a subscription that they must be of.

    `ack` returns when it is durable; `ack_soon` calls back then.
    """

    async def ack(self, parts: Sequence[LeasePart], within: Within = None) -> None: ...

    async def nack(
        self,
        parts: Sequence[LeasePart],
        delay_ms: int | None,
        error: str,
        within: Within = None,
        applied: Callable[[], None] | None = None,
    ) -> None: ...

    async def dead_letter(self, parts: Sequence[LeasePart], reason: str, error: str, within: Within = None) -> None: ...

    def ack_soon(self, parts: Sequence[NamedPart], answered: Answered, within: Within = None) -> None: ...

    def nack_soon(
        self,
        parts: Sequence[NamedPart],
        delay_ms: int | None,
        error: str,
        answered: Answered,
        within: Within = None,
        applied: Callable[[], None] | None = None,
    ) -> None: ...

    def dead_letter_soon(
        self, parts: Sequence[NamedPart], reason: str, error: str, answered: Answered, within: Within = None
    ) -> None: ...

    async def stage_ack(self, key: str, parts: Sequence[LeasePart], within: Within = None) -> None: ...

    def release(self, parts: Sequence[NamedPart], within: Within = None) -> None: ...

    def renew(self, tokens: Sequence[int], lease_ms: int | None, within: Within = None) -> None: ...

    def still_held(self, parts: Iterable[LeasePart]) -> list[LeasePart]: ...


class SettlePort(Protocol):
    """Settles what was pulled."""

    @property
    def settler(self) -> SettlerPort: ...
