"""A class name means one thing in the whole package, and names in the tests have no words for persons."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "wherry"

PERSONS = re.compile(
    r"(?:^|_)(?:who|whoever|(?:some|any|no|every)body|someone|told|tells?|sa(?:id|ys?)|hea(?:rd|rs?))(?:_|$)"
)
"""Words for persons in names of programs, where CONTRIBUTING asks for client, consumer, send, return, report."""

SAME_ROLE = {
    "Bounds": "the limits of one server, or of the connections of the client",
    "CatalogCalls": "the calls about topics and subscriptions, of the broker and of the client",
    "Connection": "one connection of a server, or of the client",
    "Consumer": "one consumer, of the broker, of the client and of a channel",
    "DeliveredRow": "one delivered message as values, in the broker and on the native wire",
    "FrameReader": "bytes of a wire into its frames",
    "Head": "the lines before a body, of HTTP and of STOMP",
    "PublishedView": "the answer to a publish as JSON, where it is written and where it is read",
    "Refused": "a call that was refused, of a queue and of a service",
    "Server": "the server of a wire",
    "Sessions": "what all sessions of a wire share",
    "Session": "the state machine of one connection of a wire",
    "SessionState": "how far a session of a wire is",
    "Transaction": "the transaction of a wire: what it collects until the commit",
    "Transport": "sends bytes or requests to the other side",
    "UnackedMessage": "a message that a client of a wire has and has not settled",
}
"""Names of classes that have the same role in different places."""


def test_a_class_name_means_one_thing():
    modules = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            modules[name].append(str(path.relative_to(SOURCE)))
    twice = {name: places for name, places in modules.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in SAME_ROLE} == {}
    assert SAME_ROLE.keys() - twice.keys() == set(), "unique by now: remove it from the list"


def test_a_name_in_tests_and_benchmarks_has_no_word_for_a_person():
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    names = [
        name
        for path in paths
        for name in re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert [name for name in names if PERSONS.search(name)] == []
