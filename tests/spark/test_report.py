"""Reports of traffic: the rollups by Spark, the page and the plots."""

import re

import pytest

from tests.integration.flights import Flights, Pushed
from wherry.spark.pipelines import report_files
from wherry.spark.pipelines.plots import short, size, span
from wherry.spark.pipelines.report import Percentiles, Report, Rollups, of_buckets
from wherry.spark.pipelines.report_watch import watched

PNG = b"\x89PNG\r\n\x1a\n"


def reject(broker, topic, count):
    broker.link.action("subscribe", {"topic": topic, "name": "w", "start": "earliest"})
    pushed = Pushed(Flights(broker.url), topic=topic, subscription="w", consumer="c", messages=count)
    pushed.say(credit=count)
    batch = pushed.next()
    assert batch.num_rows == count
    pushed.say(reject=[str(batch.column("lease")[0].as_py())], reason="rejected", error="no <such> city", id=1)
    assert pushed.next() == {"done": 1}
    pushed.end()


def test_a_report_of_topics(spark, broker, tmp_path):
    first, second = (broker.create(name=name, keep="age", keep_ms=3_600_000) for name in ("one", "two"))
    keys = ["hot"] * 60 + [f"k{n}" for n in range(40)]
    broker.publish(first, [b"x" * (n + 1) for n in range(100)], key=keys)
    broker.publish(second, [b"y" * 10] * 50)
    reject(broker, second, 20)
    seen = []

    def watch(name, work):
        return watched(spark, name, work, lambda done, known: seen.append((name, done, known)))

    made = Rollups(spark, {"url": broker.url}, [first, second], "1 hour ago").report(watch, hot=3)
    topics = {topic.name: topic for topic in made.topics}
    assert (topics[first].messages, topics[first].bytes, topics[second].bytes) == (100, 5_050, 500)
    assert topics[first].size.p50 == pytest.approx(50, abs=2)
    assert topics[first].size.max == 100
    assert 0 <= topics[first].age_ms.p50 <= topics[first].age_ms.max < 600_000
    assert sum(minute.messages for minute in made.minutes if minute.topic == first) == 100
    assert {minute.minute_ms % 60_000 for minute in made.minutes} == {0}
    hot = [key for key in made.keys if key.topic == first]
    assert (len(hot), hot[0].key, hot[0].messages, hot[0].share) == (3, "hot", 60, 0.6)
    assert sum(count for _, count in hot[0].minutes) == 60
    assert [key for key in made.keys if key.topic == second] == [], "no keys, no hot keys"
    [dead] = made.dead
    assert (dead.topic, dead.reason, dead.error, dead.messages) == (second, "rejected", "no <such> city", 20)
    [reader] = made.subscriptions
    assert (reader.name, reader.dead, reader.ready) == ("w", 20, 30)
    assert any(known for _, _, known in seen), "jobs tell how far they are"

    files = report_files.write(made, tmp_path / "report")
    assert report_files.read(tmp_path / "report") == made
    names = {path.name for path in files}
    assert {"report.json", "index.html", "rate.png", "rate-dark.png", "keys.png", "dead.png", "latency.png"} <= names
    assert all(path.read_bytes().startswith(PNG) for path in files if path.suffix == ".png")
    page = (tmp_path / "report/index.html").read_text()
    assert "no &lt;such&gt; city" in page
    assert not re.search(r"(src|href|srcset)=\"(?!data:)", page), "nothing is fetched"
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page


def test_a_report_of_nothing_is_a_page_too(tmp_path):
    empty = Report(
        made_ms=0, broker="grpc://b", start="earliest", topics=[], minutes=[], keys=[], dead=[], subscriptions=[]
    )
    assert {path.name for path in report_files.write(empty, tmp_path)} == {"index.html", "report.json"}


def test_percentiles_of_buckets():
    lines = ['w_bucket{le="0.001"} 90.0', 'w_bucket{le="0.1"} 99.0', 'w_bucket{le="+Inf"} 100.0', "w_sum 3"]
    assert of_buckets("\n".join(lines), "w") == Percentiles(1.0, 1.0, 100.0, 100.0)
    assert of_buckets("", "w") is None


def test_words_of_plots():
    assert (size(999), size(15_360), size(2e12)) == ("999 B", "15.4 kB", "2 TB")
    assert (span(3), span(90_000), span(8.64e7 * 3)) == ("3 ms", "1.5 min", "3 d")
    assert short("a\x1b$" + "x" * 100, 6) == r"a�\$xx…"
