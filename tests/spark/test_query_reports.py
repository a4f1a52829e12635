"""Streaming queries that report themselves: a real session, a real node, and a node that is down."""

import json
import time
import urllib.error
import urllib.request

import pytest

from tests.ports import free_port
from tests.spark.brokers import Broker
from tests.spark.brokers import broker as started
from wherry.model.errors import InvalidInput
from wherry.spark import report_queries
from wherry.spark.queries.reporter import QUERIES_MAX, QueryReporter
from wherry.spark.queries.tally import QueryTally

PATIENCE_S = 120
MARK = {"version": 1, "subscription": "s", "positions": {"orders": {"0": 7, "1": 4}}}


def fetched(broker, path):
    with urllib.request.urlopen(f"{broker.http}{path}", timeout=30) as answer:
        return answer.read().decode()


def shown(broker, name):
    """Return the queries of a name that the node shows."""
    return [each for each in json.loads(fetched(broker, "/v1/queries"))["queries"] if each["name"] == name]


def wait_for(what):
    until = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)
    return found


@pytest.fixture
def reporter(spark, broker):
    made = report_queries(spark, broker.http)
    yield made
    made.close()


@pytest.mark.rows("D25")
def test_a_query_is_in_the_metrics_and_the_list_of_its_node(spark, broker, queries, reporter, tmp_path):
    topic, name = broker.create(name="seen"), f"reported-{tmp_path.name}"
    broker.publish(topic, [b"x"] * 30)
    rows = queries.follow(topic, maxRowsPerBatch=10)
    writer = rows.writeStream.format("noop").queryName(name).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        (found,) = wait_for(lambda: [each for each in shown(broker, name) if each["rows"] == 30])
        assert (found["topics"], found["lag"], found["lag_ms"]) == ([topic], 0, 0)
        assert found["id"] == str(query.id) and found["state"] in ("running", "idle")
        assert found["batch"] >= 2 and found["batch_ms"] > 0
        metrics = fetched(broker, "/metrics")
        assert f'wherry_query_rows_total{{query="{name}"}} 30.0' in metrics
        assert f'wherry_query_lag_messages{{query="{name}"}} 0.0' in metrics
        assert f'wherry_query_batch_seconds_total{{query="{name}"}}' in metrics
    finally:
        query.stop()
    wait_for(lambda: shown(broker, name)[0]["state"] == "ended")
    broker.publish(topic, [b"x"] * 5)
    assert shown(broker, name)[0]["lag"] == 5, "the node counts, so the lag grows without the query"
    assert f'wherry_query_lag_messages{{query="{name}"}} 5.0' in fetched(broker, "/metrics")


def test_a_node_that_is_down_does_not_disturb_a_query(spark, broker, queries, tmp_path, caplog):
    reporter = report_queries(spark, "http://127.0.0.1:1")
    topic, target = broker.create(), broker.create()
    broker.publish(topic, [b"x"] * 5)
    queries.run(queries.follow(topic).select("payload"), target)
    assert len(broker.payloads(target)) == 5
    wait_for(lambda: "is not reported to http://127.0.0.1:1" in caplog.text)
    reporter.close()
    assert caplog.text.count("is not reported") == 1
    assert reporter.sent == 0


def test_a_failed_query_has_its_reason(spark, broker, queries, reporter, tmp_path):
    topic, name = broker.create(keep="age", keep_ms=3_600_000), f"failing-{tmp_path.name}"
    broker.publish(topic, [b"1"])
    rows = queries.follow(topic).selectExpr("CAST(CAST(payload AS STRING) AS INT) AS n")
    writer = rows.writeStream.format("noop").queryName(name).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    wait_for(lambda: shown(broker, name))
    broker.publish(topic, [b"no number"])
    (found,) = wait_for(lambda: [each for each in shown(broker, name) if each["state"] == "failed"])
    assert found["reason"] and query.exception() is not None


def test_an_end_that_the_node_has_missed_is_sent_by_close(tmp_path):
    own = Broker(tmp_path, "--port", str(port := free_port()))
    reporter = QueryReporter(f"http://127.0.0.1:{port}", None, None)
    reporter.started("id", "late")
    reporter.note("id", "progressed", {"sources": [{"endOffset": json.dumps(MARK)}], "numInputRows": 3})
    reporter.note("id", "terminated", None)
    wait_for(lambda: reporter._warned)
    own.start()
    try:
        reporter.close(PATIENCE_S)
        (found,) = shown(own, "late")
        assert (found["state"], found["rows"], found["topics"]) == ("ended", 3, ["orders"])
        assert not reporter._tallies
        for number in range(QUERIES_MAX + 1):
            reporter.started(f"q{number}", None)
        assert len(reporter._tallies) == QUERIES_MAX
        reporter.note("q0", "terminated", None)
        reporter.started("more", None)
        assert "more" in reporter._tallies and len(reporter._tallies) <= QUERIES_MAX
    finally:
        own.end()


def test_a_key_reports_and_sees_only_queries_of_topics_that_it_may_consume(tmp_path, caplog):
    with started(tmp_path, "--keys", "on") as own:
        admin = (tmp_path / "data" / "admin.key").read_text().strip()

        def call(method, path, key, body=None):
            data = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(f"{own.http}{path}", data, headers, method=method), timeout=30
                ) as answer:
                    return answer.status, json.loads(answer.read() or b"{}")
            except urllib.error.HTTPError as refused:
                return refused.code, {}

        rights = {"name": "one", "rights": [{"verb": "consume", "topics": "one"}]}
        one = call("POST", "/v1/keys", admin, rights)[1]["token"]
        reporter = QueryReporter(own.http, one, None)
        reporter.started("a", "mine")
        mark = {**MARK, "positions": {"one": {"0": 1}}}
        reporter.note("a", "progressed", {"sources": [{"endOffset": json.dumps(mark)}]})
        wait_for(lambda: reporter.sent)
        reporter.started("b", "theirs")
        with caplog.at_level("WARNING"):
            for _ in range(3):
                before = reporter.sent
                reporter.note("b", "progressed", {"sources": [{"endOffset": json.dumps(MARK)}]})
                reporter.note("a", "progressed", {"sources": []})
                wait_for(lambda before=before: reporter.sent > before)
        reporter.close()
        assert caplog.text.count("query theirs is not reported") == 1, "one warning, though others are taken"
        other = {"name": "other", "state": "running", "positions": {"one": {"0": 1}, "two": {"0": 1}}}
        assert call("PUT", "/v1/queries/b", one, other)[0] == 403
        assert call("PUT", "/v1/queries/b", admin, other)[0] == 204
        assert call("GET", "/v1/queries", "wk_nobody_secret")[0] == 401
        assert [each["name"] for each in call("GET", "/v1/queries", one)[1]["queries"]] == ["mine"]
        assert [each["name"] for each in call("GET", "/v1/queries", admin)[1]["queries"]] == ["mine", "other"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"name": "n", "state": "running", "positions": {}}, "positions"),
        ({"name": "n" * 2_000, "state": "running", "positions": {"t": {"0": 1}}}, "name"),
        ({"name": "n", "state": "asleep", "positions": {"t": {"0": 1}}}, "state"),
        ({"name": "n", "state": "idle", "positions": {"t": {"0": 1}}, "rows": -1}, "rows"),
    ],
)
def test_a_wrong_report_is_refused(broker, body, why):
    request = urllib.request.Request(f"{broker.http}/v1/queries/q", json.dumps(body).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code in (400, 422)
    assert why in refused.value.read().decode()


def test_a_wrong_address_is_refused(spark):
    with pytest.raises(InvalidInput, match="url: got 'grpc://"):
        report_queries(spark, "grpc://127.0.0.1:7072")


def test_a_tally_adds_up_micro_batches_and_ignores_other_sources():
    tally = QueryTally("q")
    assert tally.report() is None
    step = {"batchId": 0, "numInputRows": 4, "sink": {"description": "d", "numOutputRows": -1}}
    step |= {"durationMs": {"triggerExecution": 20, "addBatch": 5}, "sources": [{"endOffset": "17"}]}
    tally.progressed(step)
    assert tally.report() is None, "it reads no topic"
    other = {**MARK, "positions": {"orders": {"0": 9, "1": 2}}, "subscription": ""}
    sources = [{"endOffset": json.dumps(MARK)}, {"endOffset": json.dumps(other)}, {"endOffset": "None"}]
    tally.progressed(step | {"batchId": 1, "sources": sources})
    tally.progressed(step | {"batchId": 1, "numInputRows": 0, "durationMs": {"triggerExecution": 2}, "sources": []})
    found = tally.report()
    assert found is not None
    assert found["positions"] == {"orders": {"0": 7, "1": 2}} and found["subscriptions"] == ["s"]
    assert (found["rows"], found["rows_written"], found["batches"], found["batches_ms"]) == (8, 0, 2, 40)
    tally.terminated("Boom\n  at somewhere")
    last = tally.report()
    assert tally.is_over and last is not None and last["reason"] == "Boom"
