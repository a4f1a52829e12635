"""A topic as a lazy Polars frame and a DuckDB relation, without Spark: `wherry serve` in another terminal, then this.

pip install 'wherry[polars,duckdb]'
"""

import json
import os
import secrets

import duckdb
import polars as pl
import pyarrow as pa

import wherry

topic = f"scan-example-{secrets.token_hex(4)}"
with wherry.connect_sync(os.environ.get("WHERRY_URL", "http://127.0.0.1:7070")) as client:
    client.create_topic(topic, keep="age", keep_ms=86_400_000)
    for city, amount in (("Oslo", 60), ("Bonn", 20), ("Oslo", 5)):
        client.publish(topic, [json.dumps({"city": city, "amount": amount}).encode()])
    client.publish(topic, [b"not JSON"])

    orders = wherry.scan(
        topic,
        start="1 hour ago",
        payload="json",
        payload_schema=pa.schema([("city", pa.string()), ("amount", pa.float64())]),
    )
    client.publish(topic, [b'{"city": "Rome", "amount": 1}'])  # after the scan: not in its rows

    value = pl.col("value").struct
    cities = orders.polars().filter(pl.col("error").is_null()).group_by(city=value.field("city"))
    print(cities.agg(amount=value.field("amount").sum()).sort("city").collect())

    rows = orders.duckdb(duckdb.connect())
    print("bad:", rows.filter("error IS NOT NULL").project('"offset", error').fetchall())
    print("count:", rows.aggregate("count(*)").fetchall())

    newer = wherry.scan(topic, start=orders.stop)
    print("since then:", newer.polars().select("payload").collect()["payload"].to_list())
    client.delete_topic(topic)
