"""docs/from-kafka.md: the job for Kafka runs here after its format and url are changed, and is the example."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.brokers import broker as started
from wherry.model.errors import InvalidInput
from wherry.spark.options.kafka_options import HINTS, NAMES
from wherry.spark.options.parsing import parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-kafka.md").read_text(encoding="utf-8")
(SHELL,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
EXAMPLE = ROOT / "examples" / "spark" / "from_kafka.py"
JOB, AVRO = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CHANGES = [cells for line in PAGE.splitlines() if (cells := re.findall(r"`(\.(?:format|option)\(.*?\))`", line))]


@pytest.mark.rows("A20", "A22")
def test_a_job_for_kafka_runs_after_its_format_and_url_are_changed(spark, tmp_path, monkeypatch, capfd):
    with started(tmp_path) as own:
        for line in SHELL.splitlines():
            command = [sys.executable, "-m", "wherry", "--url", own.http, *shlex.split(line)[1:]]
            subprocess.run(command, capture_output=True, timeout=60, check=True)
        monkeypatch.setenv("WHERRY_FLIGHT_URL", own.url)
        monkeypatch.setattr("wherry.spark.session", lambda *_: spark)
        job = changed(JOB).replace("grpc://127.0.0.1:7072", own.url)
        assert "kafka" not in job.lower()
        for code in (job, EXAMPLE.read_text(encoding="utf-8"), job):  # all with one checkpoint: only the first has rows
            here = code.replace("sorted-orders.checkpoint", f"{tmp_path}/checkpoint")  # Java has another current folder
            exec(compile(here, "docs/from-kafka.md", "exec"), {})
            assert own.payloads("shop.large") == [b'{"id":1,"amount":250.0,"of":"shop.orders"}']
            assert own.payloads("shop.small") == [b'{"id":1,"amount":-20.0,"of":"shop.returns"}']
        assert [row["key"] for row in own.rows("shop.large")] == ["ann"]
        avro = AVRO.replace("session()", "spark").replace('"wherry")', f'"wherry").option("url", "{own.url}")')
        exec(compile(avro, "docs/from-kafka.md", "exec"), {"spark": spark})
    assert "ValueError: no fr" in capfd.readouterr().out


def changed(job):
    """Return the job with the changes that the page names."""
    assert len(CHANGES) == 2
    for before, after in CHANGES:
        assert job.count(before) == 2
        job = job.replace(before, after)
    return job


def test_the_example_is_that_job():
    example = EXAMPLE.read_text(encoding="utf-8")
    both = [text[text.index("orders = (") :] for text in (changed(JOB), example)]
    assert both[0].replace('"grpc://127.0.0.1:7072"', "URL") == both[1]
    lines = [line for line in both[1].splitlines() if line]
    assert 25 <= len(lines) <= 40


def test_the_page_names_each_option_of_kafka_that_is_known():
    named = {name.lower().rstrip("….") for name in re.findall(r"`([\w.…]+)`", PAGE)}
    wanted = {name for name in HINTS if not name.startswith(("fetchoffset", "kafkaconsumer"))} | NAMES
    assert wanted - {"kafka.", "kafka.security"} - named == set()


def test_an_option_that_is_in_no_list_is_an_error():
    with pytest.raises(InvalidInput, match="option someKafkaThing"):
        parse({"subscribe": "a", "someKafkaThing": "1"})
