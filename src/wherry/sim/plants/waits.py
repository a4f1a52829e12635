"""Plants that answer before the journal is durable, one for each place in the source that waits.

The places are read from the source itself, so none can be forgotten: a new wait has a plant, and a test asks which step
of the drill finds it (`FOUND_BY`).
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, NamedTuple

import wherry.broker
from wherry.broker.commit.commit import Committer, WhenDurable
from wherry.sim.patch import patched

MODULES: tuple[ModuleType, ...] = tuple(
    import_module(each.name)
    for each in walk_packages(wherry.broker.__path__, "wherry.broker.")
    if each.name != "wherry.broker.calls.calls"  # this module only defines the waits that the others call
)
"""The modules of the broker."""

WAITS = frozenset({"_durable", "_decided", "stored_so_far", "stored", "when_stored"})
"""Calls that wait for the journal, besides `wait` of a committer."""


class Wait(NamedTuple):
    """One place that waits: a function, the index of the wait in it, and its lines."""

    function: str
    number: int
    file: str
    first: int
    last: int

    @property
    def name(self) -> str:
        """Return a name such as `PublishCalls.commit 0`."""
        return f"{self.function} {self.number}"


@cache
def waits(*modules: ModuleType) -> tuple[Wait, ...]:
    """Return every place in these modules that waits for the journal."""
    found: list[Wait] = []
    for module in modules:
        file = inspect.getsourcefile(module) or ""
        for function, call in _calls(ast.parse(Path(file).read_text("utf-8")), []):
            number = sum(each.function == function for each in found)
            found.append(Wait(function, number, file, call.lineno, call.end_lineno or call.lineno))
    return tuple(found)


def _calls(node: ast.AST, names: list[str]) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _calls(child, [*names, child.name, "<locals>"])
            continue
        if isinstance(child, ast.ClassDef):
            yield from _calls(child, [*names, child.name])
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            asked = child.func.attr
            of_committer = asked in ("wait", "when_durable") and ast.unparse(child.func.value).endswith("committer")
            if asked in WAITS or of_committer:
                yield ".".join(names[:-1]), child
        yield from _calls(child, names)


@contextmanager
def unwaited(place: Wait) -> Iterator[None]:
    """Skip the wait at this place."""

    def is_here() -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            here = code.co_filename == place.file and code.co_qualname == place.function
            if here and place.first <= frame.f_lineno <= place.last:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def make(wait: Any) -> Any:
        async def hasty(self: Committer, position: int) -> None:
            if not is_here():
                await wait(self, position)

        return hasty

    def make_call(when: Any) -> Any:
        def hasty(self: Committer, position: int, call: WhenDurable, *, can_wait: bool = False) -> None:
            when(self, 0 if is_here() else position, call, can_wait=can_wait)

        return hasty

    with patched(Committer, "wait", make), patched(Committer, "when_durable", make_call):
        yield


FOUND_BY: dict[str, tuple[str, ...]] = {
    "browse_page 0": ("browse",),
    "by_id 0": ("get", "get gone"),
    "search_page 0": ("search",),
    "scheduled_page 0": ("scheduled",),
    "_dead_blocks 0": ("no dead letters",),
    "_buried 0": ("dead page",),
    "CatalogCalls.create_topic 0": ("create topic", "create again"),
    "CatalogCalls.delete_topic 0": ("delete topic", "delete topic again"),
    "CatalogCalls.subscribe 0": ("subscribe",),
    "CatalogCalls.change_subscription 0": ("change subscription",),
    "CatalogCalls.unsubscribe 0": ("unsubscribe again",),
    "CatalogCalls.unsubscribe 1": ("unsubscribe",),
    "CatalogCalls.cut_off 0": ("cut off",),
    "CatalogCalls.put_route 0": ("put route",),
    "CatalogCalls.delete_route 0": ("delete route",),
    "CatalogCalls.bind 0": ("bind",),
    "CatalogCalls.unbind 0": ("unbind",),
    "CatalogCalls.put_key 0": ("put key",),
    "CatalogCalls.alter_key 0": ("change key",),
    "CatalogCalls.delete_key 0": ("delete key", "delete key again"),
    "Consumer._handed 0": ("pull", "pull once", "pull once new"),
    "LogCalls.window 0": ("history", "history hides"),
    "LogCalls.reach 0": ("reach",),
    "LogCalls.advance 0": ("advance", "advance again"),
    "LogCalls._check_kept 0": ("reach lost", "history lost"),
    "Housekeeper._checkpoint 0": ("checkpoint",),
    "MessageCalls.cancel 0": ("cancel", "cancel again"),
    "MessageCalls.amend 0": ("amend",),
    "MessageCalls.state_of 0": ("state of",),
    "OutcomeCalls.fate 0": ("fate gone",),
    "OutcomeCalls.fate 1": ("fate",),
    "OutcomeCalls._bring_up_to_date 0": ("outcome",),
    "OutcomeCalls.reported 0": ("reported",),
    "PublishCalls._publish 0": ("duplicate",),
    "Gathering._wait_for_disk 0": ("publish",),
    "Gathering._publish_lone 0": ("publish lone",),
    "PublishCalls._publish 1": ("publish batch", "repeat"),
    "PublishCalls.when_stored 0": ("publish",),
    "PublishCalls.stored 0": ("submit", "submit repeat", "submit duplicate"),
    "PublishCalls._publish_all 0": ("publish route",),
    "PublishCalls.stage 0": ("stage",),
    "PublishCalls.commit 0": ("commit of nothing",),
    "PublishCalls.commit 1": ("commit", "commit again"),
    "PublishCalls.abort 0": ("abort",),
    "_open_shard 0": ("barrier",),
    "Settler.stage_ack 0": ("stage ack", "stage ack more"),
    "Settler.purge 1": ("purge again",),
    "Settler._answer_when_durable 0": ("ack", "nack", "dead letter"),
    "DeadLetterCalls._redrive 0": ("redrive", "redrive again"),
    "DeadLetterCalls.forward 0": ("forward",),
    "DeadLetterCalls.discard 0": ("discard",),
}
"""Steps of the drill, each of which must find the missing wait."""

NO_ANSWER: dict[str, str] = {
    "run 0": "the backfill of a subscription goes on after a restart where it was",
    "PendingOutcomes._announce 0": "it wakes the reporter to producers, and `unreported` shows only what is durable",
    "Settler.purge 0": "a purge goes no faster than the disk; its last wait is for all of it",
    "Shard._make_room 0": "it waits for room on the disk, and no client is answered",
    "Tracing._end 0": "a span is about how long something took",
}
"""Waits that no answer depends on, and why."""
