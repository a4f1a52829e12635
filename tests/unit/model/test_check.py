"""Single values at the public edge."""

from __future__ import annotations

import math

import pytest

from wherry.model import check
from wherry.model.errors import InvalidInput


@pytest.mark.parametrize("value", [3, 5, 9])
def test_whole_numbers_both_ends_included(value):
    assert check.integer("n", value, 3, 9) == value
    assert check.optional_integer("n", None, 3, 9) is None


@pytest.mark.parametrize("value", [2, 10, True, 5.0, "5", None])
def test_what_is_no_whole_number(value):
    with pytest.raises(InvalidInput, match=r"^n: got .*; allowed: a whole number from 3 to 9$"):
        check.integer("n", value, 3, 9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "1"])
def test_what_is_no_number(value):
    with pytest.raises(InvalidInput, match=r"^n: got .*; allowed: a number from 0 to 1$"):
        check.number("n", value, 0, 1)


def test_names_are_counted_in_bytes_and_identifiers_in_characters():
    assert check.name("n", "é" * 4, 8) == "éééé"
    assert check.graphic("n", "é" * 8, 8) == "é" * 8
    for wrong in ("é" * 5, "", "a\tb", "\x7f", "\ud800", 5, b"a"):
        with pytest.raises(InvalidInput, match="text of 1 to 8 UTF-8 bytes"):
            check.name("n", wrong, 8)
    for bad in ("a b", "a\u00a0b", "", "é" * 9, "\n", None):
        with pytest.raises(InvalidInput, match="1 to 8 graphic characters"):
            check.graphic("n", bad, 8)


def test_words_flags_and_text():
    assert check.one_of("w", "a", ("a", "b")) == "a"
    assert check.flag("f", False) is False
    assert check.text("t", "a\nb") == "a\nb"
    for call in (
        lambda: check.one_of("w", "c", ("a", "b")),
        lambda: check.one_of("w", ["a"], ("a", "b")),
        lambda: check.flag("f", 1),
        lambda: check.text("t", b"x"),
        lambda: check.text("t", "\ud800"),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_a_huge_value_is_not_repeated_whole():
    with pytest.raises(InvalidInput) as caught:
        check.integer("n", "x" * 100_000, 0, 1)
    assert len(str(caught.value)) < 200
    assert "(100002 characters)" in str(caught.value)
