"""Reports of traffic: the rollups by Spark, the page and the plots."""

import json
import math
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.integration.flights import Flights, Pushed
from wherry.cli.commands.pipeline.report import same_broker
from wherry.spark.pipelines.archive.tasks import watched
from wherry.spark.pipelines.report import files as report_files
from wherry.spark.pipelines.report import plots, report
from wherry.spark.pipelines.report.page import page
from wherry.spark.pipelines.report.plots import (
    LIGHT,
    cut,
    size,
    span,
)
from wherry.spark.pipelines.report.report import (
    OTHERS,
    Dead,
    Dying,
    HotKey,
    Percentiles,
    Report,
    Rollups,
    Slot,
    SubscriptionLag,
    TopicSummary,
    of_buckets,
    step_of,
)

HOUR_MS = 3_600_000
PNG = b"\x89PNG\r\n\x1a\n"


def reject(broker, topic, count):
    broker.link.action("subscribe", {"topic": topic, "name": "w", "start": "earliest"})
    pushed = Pushed(Flights(broker.url), topic=topic, subscription="w", consumer="c", messages=count)
    pushed.send(credit=count)
    batch = pushed.next()
    assert batch.num_rows == count
    pushed.send(dead_letter=[str(batch.column("lease")[0].as_py())], reason="rejected", error="no <such> city", id=1)
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

    since_ms = int(time.time() * 1_000) - HOUR_MS
    made = Rollups(spark, {"url": broker.url}, [first, second], since_ms).report(watch, hot=3)
    topics = {topic.name: topic for topic in made.topics}
    assert (topics[first].messages, topics[first].bytes, topics[second].bytes) == (100, 5_050, 500)
    assert topics[first].size.p50 == pytest.approx(50, abs=2)
    assert topics[first].size.max == 100
    assert 0 <= topics[first].age_ms.p50 <= topics[first].age_ms.max < 600_000
    assert (topics[first].keys, topics[second].keys) == (41, 0)
    assert sum(slot.messages for slot in made.slots if slot.topic == first) == 100
    assert (made.step_ms, {slot.at_ms % 60_000 for slot in made.slots}) == (60_000, {0})
    hot = [key for key in made.keys if key.topic == first]
    assert (len(hot), hot[0].key, hot[0].messages, hot[0].share) == (3, "hot", 60, 0.6)
    assert sum(count for _, count in hot[0].slots) == 60
    assert [key for key in made.keys if key.topic == second] == [], "no keys, no hot keys"
    [dead] = made.dead
    assert (dead.topic, dead.reason, dead.messages) == (second, "rejected", 20)
    assert dead.errors == [("no <such> city", 20)]
    assert sum(each.messages for each in made.dying) == 20
    assert made.dying[0].took_ms.p50 >= 0
    [reader] = made.subscriptions
    assert (reader.name, reader.dead, reader.ready) == ("w", 20, 30)
    assert any(known for _, _, known in seen), "jobs report how far they are"

    files = report_files.write(made, tmp_path / "report")
    assert report_files.read(tmp_path / "report") == made
    names = {path.name for path in files}
    kinds = ("rate", "volume", "sizes", "latency", "keys", "hot", "dead", "dying")
    assert {"report.json", "index.html", *(f"{kind}{dark}.png" for kind in kinds for dark in ("", "-dark"))} == names
    assert all(path.read_bytes().startswith(PNG) for path in files if path.suffix == ".png")
    text = (tmp_path / "report/index.html").read_text()
    assert "no &lt;such&gt; city" in text
    assert not re.search(r"(src|href|srcset)=\"(?!data:|#)", text), "nothing is fetched"
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text

    after = Rollups(spark, {"url": broker.url}, [first, second], int(time.time() * 1_000) + 1).report(watch)
    assert (after.topics, after.slots, after.dead, after.dying) == ([], [], [], []), "what died before is not reported"


def test_texts_of_errors_are_bounded(spark):
    columns = (
        "topic STRING, subscription STRING, reason STRING, attempts LONG, error STRING, died_ms LONG, took_ms LONG"
    )
    rows = [("t", "s", "r", 2, f"no {n % 60}" if n else "", n * HOUR_MS, n) for n in range(1_000)]
    rows += [("t", "s", "r", 2, "again", 0, 0)] * 40
    frame = spark.createDataFrame(rows, columns)
    [dead] = report._reasons(frame)
    assert (dead.messages, dead.errors[0], len(dead.errors)) == (1_040, ("again", 40), report.ERRORS_MAX)
    step_ms = step_of(999 * HOUR_MS)
    dying = report._dying(frame, step_ms, ["t"])
    assert len(dying) <= report.SLOTS_MAX
    assert sum(each.messages for each in dying) == 1_040
    assert report._dying(frame, step_ms, []) == []


def test_slots_are_bounded_by_time_and_by_topic(spark):
    assert all((days * 24 * HOUR_MS) / step_of(days * 24 * HOUR_MS) <= report.SLOTS_MAX for days in range(1, 30_000, 7))
    counts = spark.createDataFrame(
        [(f"t{n}", 0, f"k{k}", 1, 10) for n in range(4) for k in range(3)],
        "topic STRING, at_ms LONG, key STRING, messages LONG, bytes LONG",
    )
    assert report._slots(counts, ["t0", "t1"]) == [
        Slot(OTHERS, 0, 6, 60, 6),
        Slot("t0", 0, 3, 30, 3),
        Slot("t1", 0, 3, 30, 3),
    ]
    assert {each.topic for each in report._hot(counts, ["t0", "t1"], 2)} == {"t0", "t1"}


LONG_NAME = "a.very.long.name.of.a.topic.that.is.not.read.to.its.end"
SAME = Percentiles(1.0, 2.0, 3.0, 4.0)


def sample(**fields):
    """Make a report with names that are hard on a page and on a plot, and an hour without traffic in the middle."""
    slots = [
        Slot(topic, at * 60_000, 60, 60 * 4_096, 1)
        for at in (*range(30), *range(90, 120))
        for topic in ("x", LONG_NAME)
    ]
    sampled = {
        "made_ms": 120 * 60_000,
        "broker": "grpc://b",
        "topics": [TopicSummary(name, 60, 600, 1, 0, 1, SAME, SAME) for name in ("$x$", LONG_NAME)],
        "slots": slots,
        "keys": [HotKey("$x$", "$k$", 60, 600, 0.5, [(0, 60), (60_000, 0)])],
        "dead": [Dead(LONG_NAME, "s", "rejected", 3, 1.0, SAME, [("$e$ <b>", 3)])],
        "dying": [Dying(LONG_NAME, 0, 3, SAME), Dying(LONG_NAME, 300_000, 3, SAME)],
        "subscriptions": [SubscriptionLag("x", f"s{n}", 0, 0, 0, 0, n, 0) for n in range(150)],
    }
    return Report(**{**sampled, **fields})


@pytest.fixture
def axes(monkeypatch):
    """Return what a plot shows, instead of its bytes."""

    def shown(draw, made, theme=LIGHT):
        seen: list[Any] = []
        monkeypatch.setattr(plots, "png_of", lambda drawn: seen.extend(drawn.axes))
        draw(made, theme)
        return seen[0]

    return shown


def test_time_without_traffic_is_seen(axes):
    line = axes(plots._rate, sample()).lines[0]
    assert line.get_ydata().tolist() == [1.0] * 30 + [0.0] * 60 + [1.0] * 30
    two = [Slot("x", at * 60_000, 60 * at, 60, 1) for at in (1, 2)]
    stairs = axes(plots._rate, sample(slots=two)).lines[0]
    assert (stairs.get_ydata().tolist(), stairs.get_drawstyle()) == ([1.0, 2.0, 2.0], "steps-post"), "no slope"
    sparse = axes(plots._dying, sample()).lines[0].get_ydata()
    assert [value for value in sparse if not math.isnan(value)] == [3.0, 3.0], "no line over what is not known"
    assert len(sparse) == 6


def test_labels_are_what_they_name(axes):
    def labels(draw, theme=LIGHT):
        return [each.get_text() for each in axes(draw, sample(), theme).get_yticklabels()]

    assert labels(plots._keys) == ["$x$  $k$"]
    for theme in (LIGHT, LIGHT.narrow()):
        ages = labels(plots._latency, theme)
        assert ages[0] == "$x$: age"
        assert ages[1].startswith("a.very") and ages[1].endswith("…: age")
        assert ages[2].endswith(": until rejected")
    notes = [each.get_text() for each in axes(plots._dead, sample()).texts]
    assert "3   $e$ <b>" in notes
    assert not any(each.get_parse_math() for each in axes(plots._keys, sample()).texts)


def test_ticks_are_apart():
    assert plots._inside(plots.SPANS_MS, 40_000, 150_000, 9) == [60_000, 120_000], "not 50 s, too"
    assert plots._inside(plots.SPANS_MS, 1.5, 8, 9) == [2, 5]
    assert plots._inside(plots.SIZES, 1, 1 << 20, 3) == [1, 256, 65_536]


def test_a_page_names_its_time_and_keeps_tables_short():
    made = sample(since_ms=60_000)
    text = page(made, [])
    assert "grpc://b · since 1970-01-01 00:01 UTC · made 1970-01-01 02:00 UTC" in text
    assert "50 more are in report.json" in text
    assert "$e$ &lt;b&gt; (3)" in text
    assert "KiB" in page(sample(topics=[TopicSummary("x", 1, 20_480, 1, 0, 1, SAME, SAME)]), [])
    drawn = plots.Plot("rate", "Rate", "About.", {theme.name: theme.name.encode() for theme in plots.THEMES})
    [picture] = re.findall(r"<picture>.*</picture>", page(made, [drawn]))
    media = re.findall(r'media="([^"]*)"', picture)
    assert media == [
        "(prefers-color-scheme: dark) and (max-width: 640px)",
        "(max-width: 640px)",
        "(prefers-color-scheme: dark)",
    ]


def test_figures_of_another_broker_are_not_ours():
    text = '# TYPE wherry_messages_published_total counter\nwherry_messages_published_total{topic="a \\"b\\""} 7.0\n'
    assert same_broker(text, {'a "b"': 7}, {'a "b"': 9})
    assert not same_broker(text, {'a "b"': 8}, {'a "b"': 9})
    assert not same_broker(text, {'a "b"': 7, "c": 0}, {'a "b"': 7, "c": 0})
    assert not same_broker("", {}, {})


def test_the_command(broker, tmp_path):
    topic = broker.create(keep="age", keep_ms=HOUR_MS)
    broker.publish(topic, [b"x" * 2_000] * 10)
    reject(broker, topic, 5)
    command = [sys.executable, "-m", "wherry", "--url", broker.http, "pipeline", "report", topic]
    options = ["--to", str(tmp_path / "r"), "--since", "10 minutes ago", "--master", "local[2]", "--url", broker.url]
    done = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["topics"][0]["messages"] == 10
    assert made["delivery_ms"]["max"] > 0, "as the broker measured it"
    assert 0 <= made["made_ms"] - made["since_ms"] - 600_000 < 120_000
    assert (tmp_path / "r" / "index.html").exists()


def test_a_report_of_nothing_is_a_page_too(tmp_path):
    empty = sample(topics=[], slots=[], keys=[], dead=[], dying=[], subscriptions=[])
    assert {path.name for path in report_files.write(empty, tmp_path)} == {"index.html", "report.json"}
    assert "There was no traffic" in (tmp_path / "index.html").read_text()


def test_percentiles_of_buckets():
    lines = ['w_bucket{le="0.001"} 90.0', 'w_bucket{le="0.1"} 99.0', 'w_bucket{le="+Inf"} 100.0', "w_sum 3"]
    assert of_buckets("\n".join(lines), "w") == Percentiles(1.0, 1.0, 100.0, 100.0)
    assert of_buckets("", "w") is None


def test_words_of_plots():
    assert (size(999), size(1_010), size(15_360), size(3 << 40)) == ("999 B", "1,010 B", "15 KiB", "3 TiB")
    assert (span(3), span(999.7), span(90_000), span(8.64e7 * 3)) == ("3 ms", "1,000 ms", "1.5 min", "3 d")
    assert cut("a\x1b$" + "x" * 100, 6) == "a�$xx…"
