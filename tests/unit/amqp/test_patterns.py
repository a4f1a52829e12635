"""Expressions of permissions as patterns: the same names, or a refusal."""

import re

import pytest

from wherry.model.catalog.key import fits
from wherry.model.errors import InvalidInput
from wherry.wire.amqp.management.patterns import patterns

NAMES = ["jobs", "jobs.done", "jobsXdone", "my-jobs", "mails", "amq.gen-x", "a$b", "x.y", "jobs*", "mailsjobs"]
SAME = [
    ".*",
    "^.*$",
    "jobs",
    "^jobs",
    "jobs$",
    "^jobs$",
    r"^jobs\.done$",
    r"\.done",
    "^jobs$|^mails$",
    "^(jobs|mails)$",
]
SAME += [r"^(amq\.gen.*|my-.*)$", "^jobs.*done", r"a\$b", "(jobs|x)", "^$", "^my-|mails"]
REFUSED = ["a.b", "[ab]", "a+", "a?", "(a|b)c", "a|", "|", r"\d", r"\w+", "a{2}", "((a))", r"\*", "^", "$", "a\\"]


@pytest.mark.parametrize("expression", SAME)
def test_a_pattern_covers_the_names_that_the_expression_is_found_in(expression):
    found = patterns("read", expression)
    for name in NAMES:
        assert any(fits(each, name) for each in found) is bool(re.search(expression, name)), (expression, name)


@pytest.mark.parametrize("expression", REFUSED)
def test_a_pattern_that_is_not_valid_is_refused(expression):
    with pytest.raises(InvalidInput):
        patterns("read", expression)


def test_nothing_is_nothing():
    assert patterns("read", "") == []
