"""Keys and TLS on the way to a broker, as a load is told of them; readers and writers as Spark calls them."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.integration.shell import CERTIFICATES, TLS
from tests.spark.brokers import broker as started
from wherry.model.errors import InvalidInput, Unauthorized, Unavailable
from wherry.spark.batch import BatchReader
from wherry.spark.link import link
from wherry.spark.options import parse
from wherry.spark.schema import MESSAGES
from wherry.spark.sink import BatchWriter

PAYLOAD = StructType([MESSAGES["payload"]])


def test_a_key_and_a_certificate(tmp_path):
    with started(tmp_path, "--keys", "on", *TLS) as own:
        told = {"url": own.url.replace("grpc://", "grpc+tls://"), "topic": "t", "retrySeconds": "2"}
        key = (tmp_path / "data" / "admin.key").read_text().strip()
        whole = {**told, "apiKey": key, "ca": str(CERTIFICATES / "authority.pem")}
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
