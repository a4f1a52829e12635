"""The command line against a broker that `wherry serve` started: dead letters."""

import asyncio

import pytest

from tests.integration.shell import bury, lines
from wherry import connect


@pytest.mark.rows("A11", "A12")
def test_dead_letters_are_seen_redriven_and_audited(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    bury(url, request.node.name, "broken.png", "torn.png", reason="no picture")
    rows = lines(wherry("dead", "list", "{t}", "--json"))
    assert [(row["payload"], row["reason"], row["error"]) for row in rows] == [
        ("broken.png", "no picture", "not a picture"),
        ("torn.png", "no picture", "not a picture"),
    ]
    [one] = lines(wherry("dead", "show", "{t}", "torn.png", "--json"))
    assert (one["payload"], one["attempts"]) == ("torn.png", 1)
    assert "broken.png" in wherry("dead", "redrive", "{t}", "--dry-run").stdout
    assert "give --yes" in wherry("dead", "redrive", "{t}", code=2).stderr, "without a terminal there is no question"
    wherry("dead", "list", "{t}", "--reason", "elsewhere")
    done = wherry("dead", "redrive", "{t}", "--reason", "picture", "--rate", "100", "--by", "ann", "--yes", "--json")
    assert lines(done) == [{"count": 2}]
    again = wherry("dead", "redrive", "{t}", "--yes")
    assert "no such dead letters" in again.stderr
    assert wherry("consume", "{t}", "workers").stdout == "broken.png\ntorn.png\n"
    assert {(action["what"], action["by"]) for action in lines(wherry("dead", "audit", "{t}", "--json"))} == {
        ("redriven", "ann")
    }


def test_dead_letters_are_thrown_away(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    bury(url, request.node.name, "a", "b")
    assert lines(wherry("dead", "discard", "{t}", "--subscription", "workers", "--yes", "--json")) == [{"count": 2}]
    assert wherry("dead", "list", "{t}", "--json").stdout == ""


def test_a_dead_letter_is_found_among_many(wherry, url, request):
    wherry("topic", "create", "{t}")
    for subscription in ("idle", "workers", "others"):
        wherry("subscription", "create", "{t}", subscription)
    for time in "abc":  # each time many in one millisecond
        bury(url, request.node.name, *(f"{time}{number}" for number in range(300)))
    for name, offset in (("a0", 0), ("b150", 450), ("c299", 899)):
        [one] = lines(wherry("dead", "show", "{t}", name, "--json"))
        assert (one["payload"], one["subscription"], one["offset"]) == (name, "workers", offset)
    assert lines(wherry("dead", "show", "{t}", "0-899", "--json")) == [one]


def test_a_dead_letter_is_shown_for_each_subscription(wherry, url, request):
    wherry("topic", "create", "{t}", "--messages-max", "2", "--overflow", "dead-letter")
    for subscription in ("workers", "others"):
        wherry("subscription", "create", "{t}", subscription)
    bury(url, request.node.name, "twice")

    async def reject():
        async with connect(url) as client:
            await (await client.pull(request.node.name, "others", 1)).dead_letter()

    asyncio.run(reject())
    rows = lines(wherry("dead", "show", "{t}", "twice", "--json"))
    assert {row["subscription"]: row["error"] for row in rows} == {"workers": "not a picture", "others": ""}
    wherry("publish", "{t}", "fits", "--id", "fits")
    wherry("publish", "{t}", "too many", "--id", "none")
    wherry("publish", "{t}", "too many", "--id", "more")
    [row] = lines(wherry("dead", "show", "{t}", "more", "--json"))
    assert (row["payload"], row["subscription"]) == ("too many", "")
    for name in ("fits", "nowhere"):
        assert f"no dead letter named '{name}'" in wherry("dead", "show", "{t}", name, code=1).stderr
    assert "no topic named" in wherry("dead", "show", "{t}-2", "more", code=1).stderr
