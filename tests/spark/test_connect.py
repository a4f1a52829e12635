"""A Spark that was started elsewhere, by Spark Connect: a real server, to which the command is only a client."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest

from tests.integration.shell import CERTIFICATES, TLS
from tests.ports import free_port
from tests.spark.brokers import broker as started
from wherry.model.errors import InvalidInput
from wherry.spark import session
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.cluster import path_of_python, spark_home
from wherry.spark.sessions.java import java_home

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY = b"Spark Connect server started"
PATIENCE_S = 240

PIPELINE = """
name = "far"
checkpoint = "{folder}/checkpoint"
[sources.numbers]
topic = "numbers"
payload = "json"
schema = "n LONG NOT NULL"
[steps.doubled]
sql = "SELECT key, value.n * 2 AS n, current_timezone() AS zone FROM Numbers"
[sinks.doubled]
from = "doubled"
topic = "doubled"
"""


@contextmanager
def server(folder):
    """Start a Connect server on two cores, without anything of ours in its environment but the package."""
    port = free_port()
    ours = ("WHERRY_KEY", "WHERRY_CA", "WHERRY_FLIGHT_URL")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"JAVA_HOME": str(java_home()), "SPARK_HOME": str(spark_home()), "PYTHONPATH": path_of_python()}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "Asia/Tokyo"}
    conf = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    conf |= {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    flags = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", *flags, "--class", SERVER]
    log = folder / "connect.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + PATIENCE_S
        while READY not in log.read_bytes():
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-2_000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    with server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def test_a_pipeline_runs_by_spark_connect_with_key_and_ca(far, tmp_path):
    with started(tmp_path, "--keys", "on", *TLS) as own:
        url, key = own.url.replace("grpc://", "grpc+tls://"), (tmp_path / "data" / "admin.key").read_text().strip()
        ca = str(CERTIFICATES / "authority.pem")
        own.link = FlightLink(url, key, ca, 20)
        own.link.action("create-topic", {"name": "numbers"})
        own.publish("numbers", [*(json.dumps({"n": n}).encode() for n in range(50)), b"{}"])
        (tmp_path / "far.toml").write_text(PIPELINE.format(folder=tmp_path))
        command = [
            sys.executable,
            "-m",
            "wherry",
            "--ca",
            ca,
            "pipeline",
            "run",
            "far.toml",
            "--once",
            "--consume",
            "--json",
        ]
        done = subprocess.run(
            [*command, "--master", far, "--url", url, "--api-key", key],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert (report["failed"], report["bad"]) == ([], 1)
        rows = [json.loads(payload) for payload in own.payloads("doubled")]
        assert sorted(row["n"] for row in rows) == [2 * n for n in range(50)]
        assert {row["zone"] for row in rows} == {"UTC"}, "what a session is set to holds there too"
        assert set(own.subscriptions("numbers")) == {"far.doubled.numbers", "far.numbers.bad.numbers"}


def test_what_is_missing_for_connect_is_reported(monkeypatch):
    monkeypatch.setattr(sys.modules["wherry.spark.sessions.session"], "CONNECT", ("grpc", "no_such_module"))
    with pytest.raises(InvalidInput, match=r"pip install 'wherry\[connect\]' brings .*no_such_module"):
        session(master="sc://127.0.0.1:1")


CLIENT = """
import sys, time
from wherry.spark import report_queries, session, table
far, url, http, topic, folder = sys.argv[1:]
spark = session(master=far)
rows = table(spark, topic, where="offset >= 7 AND key = 'k'", columns=["offset"], url=url)
assert rows.columns == ["offset"] and sorted(row[0] for row in rows.collect()) == [7, 8, 9]
assert table(spark, topic, where="now() > published", url=url).count() == 10
assert table(spark, topic, columns=["key"], url=url).distinct().count() == 1
reporter = report_queries(spark, http)
load = spark.readStream.format("wherry").options(url=url, topic=topic).load()
query = load.writeStream.format("noop").queryName("far").option("checkpointLocation", folder).start()
until = time.monotonic() + 120
while not reporter.sent:
    assert time.monotonic() < until
    time.sleep(0.2)
query.stop()
reporter.close()
print("all of it")
"""


def test_tables_and_reports_by_spark_connect(far, broker, tmp_path):
    """Run in a process of its own: a session of this process is no client of Spark Connect."""
    topic = broker.create(keep="age", keep_ms=3_600_000)
    broker.publish(topic, [b"x"] * 10, key=["k"] * 10)
    words = [sys.executable, "-c", CLIENT, far, broker.url, broker.http, topic, str(tmp_path / "checkpoint")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0 and "all of it" in done.stdout, done.stdout + done.stderr[-3_000:]
    with urllib.request.urlopen(f"{broker.http}/v1/queries", timeout=30) as answer:
        (found,) = [each for each in json.loads(answer.read())["queries"] if each["topics"] == [topic]]
    assert found["name"] == "far"
