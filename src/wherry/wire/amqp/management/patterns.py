r"""Regular expressions of permissions as patterns with `*`, as far as a pattern matches the same names.

RabbitMQ searches an expression anywhere in a name, unless it is anchored at the begin or the end of the name:

    .*        *           ^jobs       jobs*        ^jobs$|^mails$      jobs, mails
    jobs      *jobs*      \.done$     *.done       ^(jobs|mails)$      jobs, mails
"""

from __future__ import annotations

import re

from wherry.model.errors import InvalidInput

NOTHING = ("", "^$")
ALLOWED = r"names with .* for any characters, ^ and $, | between them, and a \ before each other sign"

_GROUP = re.compile(r"(\^?)\(([^()]*)\)(\$?)")
_STEP = re.compile(r"\\(?P<sign>[^\w*])|(?P<any>\.\*)|(?P<plain>[\w\-/:@#%&,=~!<>'\" ]+)")


def patterns(field: str, expression: str) -> list[str]:
    """Return the patterns of an expression, or raise `InvalidInput`.

    Examples
    --------
    >>> patterns("read", ".*"), patterns("read", "^jobs$|^mails-"), patterns("read", "")
    (['*'], ['jobs', 'mails-*'], [])
    """
    if expression in NOTHING:
        return []
    grouped = _GROUP.fullmatch(expression)
    if grouped is not None:
        parts = [grouped[1] + part + grouped[3] for part in grouped[2].split("|")]
    else:
        parts = expression.split("|")
    found = [_pattern(part) for part in parts]
    if None in found:
        raise InvalidInput(field, expression, ALLOWED)
    return [each for each in found if each is not None]


def _pattern(part: str) -> str | None:
    """Return one alternative as a pattern; None if no pattern matches the same names."""
    begins, ends = part.startswith("^"), part.endswith("$") and not part.endswith("\\$")
    body = part[1 if begins else 0 : len(part) - (1 if ends else 0)]
    if not body:
        return None
    result = "" if begins else "*"
    at = 0
    while at < len(body):
        step = _STEP.match(body, at)
        if step is None:
            return None
        result += step["sign"] or step["plain"] or "*"
        at = step.end()
    result += "" if ends else "*"
    return re.sub(r"\*+", "*", result)
