"""Reports of streaming queries as a node keeps them: bounds, silence, and a lag that the node counts itself."""

import asyncio

import pytest

import wherry
from wherry.model import limits
from wherry.model.errors import InvalidInput
from wherry.node.queries.reports import KEPT_S, QUERIES_MAX, SILENT_S, TOPICS_MAX, QueryReport, QueryReports


def report(**fields):
    return QueryReport(**{"name": "q", "state": "running", "positions": {"t": {0: 0}}, **fields})


def looked(look):
    """Run a look at the reports of a broker with three messages in the topic `t`; the clock is a list of one time."""

    async def run():
        async with wherry.open() as broker:
            await broker.create_topic("t")
            await broker.publish("t", [b"1", b"2", b"3"])
            clock = [0.0]
            await look(QueryReports(broker, lambda: clock[0]), clock, broker)

    asyncio.run(run())


def test_the_lag_is_counted_at_each_look():
    async def look(reports, clock, broker):
        reports.take("id", report(positions={"t": {0: 1}, "gone": {0: 5}}))
        assert reports.view("id").lag == 2
        await broker.publish("t", [b"4"])
        assert (reports.view("id").lag, reports.view("id").lag_ms) == (3, None)
        reports.take("id", report(positions={"t": {0: 4}}))
        assert (reports.view("id").lag, reports.view("id").lag_ms) == (0, 0)

    looked(look)


def test_a_query_that_is_silent_is_shown_so_and_then_forgotten():
    async def look(reports, clock, broker):
        reports.take("lives", report())
        reports.take("over", report(state="ended"))
        clock[0] = SILENT_S + 1
        assert (reports.view("lives").state, reports.view("over").state) == ("silent", "ended")
        reports.take("lives", report(state="idle"))
        assert reports.view("lives").state == "idle"
        clock[0] = KEPT_S + 1
        assert list(reports.all()) == ["lives"]

    looked(look)


def test_one_query_too_many_takes_the_place_of_the_most_silent():
    async def look(reports, clock, broker):
        for number in range(QUERIES_MAX):
            reports.take(f"q{number}", report())
        reports.take("q0", report())
        reports.take("more", report())
        assert len(reports.all()) == QUERIES_MAX
        assert "q1" not in reports.all() and "q0" in reports.all()

    looked(look)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"positions": {}}, "positions"),
        ({"positions": {str(number): {0: 1} for number in range(TOPICS_MAX + 1)}}, "positions"),
        ({"name": "n" * 1_001}, "name"),
        ({"reason": "n" * 1_001}, "reason"),
        ({"rows": -1}, "rows"),
        ({"positions": {"t": dict.fromkeys(range(limits.PARTITIONS_MAX + 1), 1)}}, "positions"),
        ({"subscriptions": [f"s{number}" for number in range(TOPICS_MAX + 1)]}, "subscriptions"),
        ({"subscriptions": ["s" * (limits.SUBSCRIPTION_NAME_CHARS_MAX + 1)]}, "subscriptions"),
    ],
)
def test_a_report_out_of_bounds_is_refused(fields, field):
    with pytest.raises(InvalidInput, match=field):
        report(**fields).checked()
    assert report(positions={str(number): {0: 1} for number in range(TOPICS_MAX)}, reason="n" * 1_000).checked()
    assert report(subscriptions=["s" * limits.SUBSCRIPTION_NAME_CHARS_MAX] * TOPICS_MAX).checked()
