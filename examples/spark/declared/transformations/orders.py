"""A table that grows by the new messages of a topic, and a topic that gets the large orders."""

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@pipelines.table
def orders() -> DataFrame:
    """Follow the topic: each run of the pipeline reads what was published since the one before."""
    decoded = {"payload": "json", "payloadSchema": "number LONG, city STRING, amount DOUBLE"}
    messages = spark.readStream.format("wherry").option("topic", "example.orders").options(**decoded).load()
    return messages.selectExpr("offset", "key", "published", "value.*")


pipelines.create_sink("large", "wherry", {"topic": "example.large"})


@pipelines.append_flow(target="large", name="large_orders")
def large() -> DataFrame:
    """Publish orders of 50 and more."""
    return spark.readStream.table("orders").where("amount >= 50").selectExpr("key", "to_json(struct(number)) AS value")
