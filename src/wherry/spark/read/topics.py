"""Which topics a load is about: those named, and those that a pattern fits by now."""

from __future__ import annotations

from fnmatch import fnmatchcase

from wherry.spark.link import Link
from wherry.spark.options import is_pattern


def resolve(link: Link, given: tuple[str, ...]) -> list[str]:
    """Names of topics. One that is named need not be there yet: whoever asks for it is told so by the broker."""
    names = [name for name in given if not is_pattern(name)]
    patterns = [name.replace("[", "[[]").replace("?", "[?]") for name in given if is_pattern(name)]
    if patterns:
        there = [each["name"] for each in link.action("topics", {})["topics"]]
        names += [name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return list(dict.fromkeys(names))
