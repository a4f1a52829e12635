"""Routes against a matcher that is obviously right, and slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.routing import targets

words = st.sampled_from(["a", "b", "c", ""])
keys = st.lists(words, max_size=6).map(".".join)
patterns = st.lists(words | st.sampled_from(["*", "#"]), max_size=6).map(".".join)
headers = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)


def naive(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(naive(pattern[1:], key[skip:]) for skip in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and naive(pattern[1:], key[1:])


def split(text: str) -> list[str]:
    return text.split(".") if text else []


@given(patterns, keys)
@example("#.#", "")
@example("a.#.b.#.c", "a.b.b.c.c")
@example("*", "")
def test_patterns(pattern, key):
    route = Route(name="r", kind="pattern", bindings=(Binding(topic="t", match=pattern),))
    assert targets(route, key, {}) == (["t"] if naive(split(pattern), split(key)) else [])


@given(st.lists(st.tuples(st.sampled_from("tuv"), headers, st.booleans()), max_size=5), headers)
def test_headers(rules, given_headers):
    bindings = tuple(Binding(topic=topic, headers=wanted, any_header=some) for topic, wanted, some in rules)
    expected = []
    for topic, wanted, some in rules:
        hits = [given_headers.get(name) == value for name, value in wanted.items()]
        if (any(hits) if some else all(hits)) and topic not in expected:
            expected.append(topic)
    assert targets(Route(name="r", kind="headers", bindings=bindings), "", given_headers) == expected


@given(st.lists(st.tuples(st.sampled_from("tuv"), keys), max_size=6), keys)
def test_direct_and_fanout(rules, key):
    bindings = tuple(Binding(topic=topic, match=match) for topic, match in rules)
    direct = [topic for topic, match in rules if match == key]
    assert targets(Route(name="r", kind="direct", bindings=bindings), key, {}) == list(dict.fromkeys(direct))
    every = list(dict.fromkeys(topic for topic, _ in rules))
    assert targets(Route(name="r", kind="fanout", bindings=bindings), key, {}) == every


@pytest.mark.parametrize("pattern", ["#.a." * 40 + "#.b", "#." * 300 + "b", "*.#." * 100 + "b"])
def test_a_hostile_pattern_is_not_slow(pattern):
    route = Route(name="r", kind="pattern", bindings=(Binding(topic="t", match=pattern),))
    started = time.monotonic()
    assert targets(route, "a." * 500 + "a", {}) == []
    assert time.monotonic() - started < 2, "words times words, not two to the words"
