"""Stages and rights: what lies under a key is let out, or thrown away, by whoever might have put it there."""

from __future__ import annotations

from wherry.core.state import State
from wherry.model.key import Verb


def claims(state: State, *keys: str) -> list[tuple[Verb, str]]:
    """The rights, each with its topic, that it took to fill what lies, or lay, under these keys."""
    found: dict[tuple[Verb, str], None] = {}
    for key in keys:
        stage, done = state.stages.open.get(key), state.stages.committed.get(key)
        numbers = [part.topic for part in stage.parts] if stage is not None else []
        numbers += done.reshape(-1, 4)[:, 0].tolist() if done is not None else []
        for number in numbers:
            if number in state.topics:
                found["publish", state.topics[number].config.name] = None
        for settle in stage.settles if stage is not None else ():
            lease = state.leases.get(settle.token)
            if lease is not None:
                found["consume", state.subscriptions[lease.subscription].config.topic] = None
    return list(found)
