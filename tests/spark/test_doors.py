"""Keys and TLS on the way to a broker, as options of a load; readers and writers as Spark calls them."""

import json
import secrets
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.integration.shell import CERTIFICATES, TLS
from tests.spark.brokers import broker as started
from wherry.model.errors import AlreadyExists, Forbidden, InvalidInput, Unauthorized, Unavailable
from wherry.spark.columns.schema import MESSAGES
from wherry.spark.link import FlightLink, link
from wherry.spark.options.parsing import parse
from wherry.spark.read.batch import BatchReader
from wherry.spark.write.sink import BatchWriter

PAYLOAD = StructType([MESSAGES["payload"]])
BATCH = "spark/5f0c1d1e-1d2c-4a53-9a0e-0d2b7c3f4a5b/7"
"""The key of a micro-batch."""


def test_a_key_and_a_certificate(tmp_path):
    with started(tmp_path, "--keys", "on", *TLS) as own:
        options = {"url": own.url.replace("grpc://", "grpc+tls://"), "topic": "t", "retrySeconds": "2"}
        key = (tmp_path / "data" / "admin.key").read_text().strip()
        whole = {**options, "apiKey": key, "ca": str(CERTIFICATES / "authority.pem")}
        link(parse(whole)).action("create-topic", {"name": "t"})

        sink = BatchWriter(parse(whole), PAYLOAD)
        batch = pa.record_batch({"payload": [b"secret"]})
        sink.commit([sink._stage("k", "0", iter([batch]))])
        reader = BatchReader(parse(whole), PAYLOAD)
        (part,) = reader.partitions()
        assert [row for found in reader.read(part) for row in found.to_pylist()] == [{"payload": b"secret"}]

        for wrong, error in (
            ({**whole, "apiKey": "wk_nobody_secret"}, Unauthorized),
            ({**whole, "ca": ""}, Unavailable),
            ({**whole, "ca": str(tmp_path / "none.pem")}, InvalidInput),
        ):
            with pytest.raises(error):
                BatchReader(parse(wrong), PAYLOAD).partitions()


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """Start a broker with keys on; yield it, its topics `t` and `u`, and a maker of tokens."""
    folder = tmp_path_factory.mktemp("locked")
    with started(folder, "--keys", "on") as own:
        admin = (folder / "data" / "admin.key").read_text().strip()
        for topic in ("t", "u"):
            FlightLink(own.url, admin).action("create-topic", {"name": topic})

        def token(name, *rights):
            flags = [word for right in rights for word in ("--right", right)]
            command = ["--url", own.http, "--api-key", admin, "key", "create", name, *flags, "--json"]
            done = subprocess.run(
                [sys.executable, "-m", "wherry", *command], capture_output=True, text=True, check=True
            )
            return json.loads(done.stdout)["token"]

        yield own, admin, token


def written(url, token, topic, key, *payloads, **options):
    """Run a job of one task, or a micro-batch, with this token; return whether it wrote."""
    sink = BatchWriter(parse({"url": url, "apiKey": token, "topic": topic, "retrySeconds": "0", **options}), PAYLOAD)
    batch = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
    message = sink._stage(sink._key if key is None else key, secrets.token_hex(4), iter([batch]))
    sink.commit([message])
    return message.stage is not None


@pytest.mark.parametrize(
    ("key", "options"), [(None, {"commitKey": "nightly"}), ("spark/5f0c1d1e-1d2c-4a53-9a0e-0d2b7c3f4a5b/7", {})]
)
def test_a_job_that_continues_under_another_key_writes_nothing_twice(locked, key, options):
    own, admin, token = locked
    before = FlightLink(own.url, admin).action("extents", {"topic": "t"})["stop"]["0"]
    alice, bob = token("alice", "publish:t"), token("bob", "publish:*")
    assert written(own.url, alice, "t", key, b"a", b"b", **options)
    assert not written(own.url, bob, "t", key, b"a", b"b", **options)
    assert not written(own.url, alice, "t", key, b"a", b"b", **options)
    assert FlightLink(own.url, admin).action("extents", {"topic": "t"})["stop"]["0"] == before + 2
    stranger = token("stranger", "publish:u")
    with pytest.raises(Forbidden):
        written(own.url, stranger, "u", key or "spark/key/t/nightly", b"x")


def test_one_commit_key_is_for_one_topic(locked):
    own, _, token = locked
    both = token("both", "publish:*")
    assert written(own.url, both, "t", None, b"a", commitKey="batch 1")
    assert written(own.url, both, "u", None, b"a", commitKey="batch 1"), "else the second of two sinks had nothing"
    assert written(own.url, both, "u", "spark/key/t/taken", b"x")
    with pytest.raises(AlreadyExists, match="committed to topic 'u', now it is for 't'"):
        written(own.url, both, "t", None, b"a", commitKey="taken")


def test_other_keys_are_of_their_callers(locked):
    own, _, token = locked
    one, other = token("spark/x", "publish:t"), token("other", "publish:t")
    assert written(own.url, one, "t", "y", b"1")
    assert written(own.url, other, "t", "y", b"1")
    assert written(own.url, other, "t", "spark/x:y", b"1"), "no name of a caller leads to a key that is shared"
