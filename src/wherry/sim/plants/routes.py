"""Planted bugs in routes, purges, forwards and the burial of the oldest messages: see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from wherry.broker.calls.dead_letters import DeadLetterCalls
from wherry.broker.calls.publish import PublishCalls
from wherry.core.apply import apply
from wherry.core.decide import dead_letters, room, settling
from wherry.model import ops
from wherry.model.catalog import routing
from wherry.sim.patch import patched


def forget_a_binding() -> Any:
    """Journal and confirm a binding, but do nothing when it is applied."""
    return patched(apply, "_HANDLERS", lambda handlers: {**handlers, ops.Bind: lambda step, op: None})


def keep_a_binding() -> Any:
    """Journal and confirm an unbind, but do nothing when it is applied."""
    return patched(apply, "_HANDLERS", lambda handlers: {**handlers, ops.Unbind: lambda step, op: None})


def go_no_further() -> Any:
    """Drop a message that matches no binding of a route, instead of following the route's `otherwise`."""

    def make(reached: Any) -> Any:
        return lambda route, routes, matches: reached(replace(route, otherwise=None), routes, matches)

    return patched(routing, "reached", make)


def copy_to_fewer() -> Any:
    """Publish no copy to the last of several topics."""

    def make(publish_all: Any) -> Any:
        async def fewer(self: PublishCalls, names: Any, messages: Any) -> Any:
            answers = await publish_all(self, names[:-1] if len(names) > 1 else names, messages)
            return {name: answers.get(name) for name in names}

        return fewer

    return patched(PublishCalls, "_publish_all", make)


def purge_too_little() -> Any:
    """Stop a purge too early."""

    def make(purge: Any) -> Any:
        def stop(*args: Any) -> Any:
            steps, count = purge(*args)
            return (steps, count) if count % 2 else ([], 0)

        return stop

    return patched(settling, "purge", make)


def boast_of_a_purge() -> Any:
    """Return more purged messages than there were."""

    def make(purge: Any) -> Any:
        def boast(*args: Any) -> Any:
            steps, count = purge(*args)
            return steps, 3 * count

        return boast

    return patched(settling, "purge", make)


def forward_and_keep() -> Any:
    """Keep a forwarded dead letter."""
    return patched(dead_letters, "forward", lambda _: lambda *args: [])


def forward_nothing() -> Any:
    """Remove forwarded dead letters without publishing them."""

    def make(forward: Any) -> Any:
        return lambda self, sources, to, by="": forward(self, sources, [], by=by)

    return patched(DeadLetterCalls, "forward", make)


def forward_the_first() -> Any:
    """Forward the dead letters of several topics, and remove those of the first topic only."""

    def make(forward: Any) -> Any:
        return lambda self, sources, to, by="": forward(self, sources[:1], to, by=by)

    return patched(DeadLetterCalls, "forward", make)


def drop_the_oldest() -> Any:
    """Drop the oldest messages instead of burying them."""

    def make(going: Any) -> Any:
        return lambda *args, **options: going(*args, **{**options, "bury": False})

    return patched(room, "removal_ops", make)


ROUTE_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "forget a binding": (forget_a_binding, 3, ("bindings_stay", "routed_by_bindings")),
    "keep a binding": (keep_a_binding, 3, ("bindings_stay", "routed_by_bindings")),
    "go no further": (go_no_further, 3, ("routed_by_bindings",)),
    "copy to fewer": (copy_to_fewer, 3, ("copies_are_kept",)),
    "purge too little": (purge_too_little, 3, ("purge_takes_all",)),
    "boast of a purge": (boast_of_a_purge, 3, ("purges_count_true",)),
    "forward and keep": (forward_and_keep, 3, ("forwarded_once", "dedup")),
    "forward nothing": (forward_nothing, 3, ("copies_are_kept", "forwarded_once")),
    "forward the first": (forward_the_first, 3, ("forwarded_once", "dedup")),
    "drop the oldest": (drop_the_oldest, 50, ("copies_are_kept",)),
}
"""As in `plants`."""
