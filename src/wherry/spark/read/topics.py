"""The topics of a load: those that are named, and those that match a pattern now."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from wherry.spark.link import FlightLink
from wherry.spark.options.options import Options, is_pattern


def topics_of(link: FlightLink, options: Options) -> list[str]:
    """Return the names of the topics of a load, as of now."""
    if options.pattern is None:
        return resolve(link, options.topics)
    pattern = re.compile(options.pattern)
    there = [each["name"] for each in link.action("topics", {})["topics"]]
    return [name for name in there if pattern.fullmatch(name)]


def resolve(link: FlightLink, given: tuple[str, ...]) -> list[str]:
    """Return the names of topics. A named topic need not exist yet: a later call to the broker raises `NotFound`."""
    names = [name for name in given if not is_pattern(name)]
    patterns = [name.replace("[", "[[]").replace("?", "[?]") for name in given if is_pattern(name)]
    if patterns:
        there = [each["name"] for each in link.action("topics", {})["topics"]]
        names += [name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return list(dict.fromkeys(names))
