"""Orders of two topics, sorted into topics by their size: a job for Kafka, but for its format and url.

Run a broker (`wherry serve`), make the topics of docs/from-kafka.md, then: python examples/spark/from_kafka.py
"""

import os

from pyspark.sql import functions as f

from wherry.spark import session

URL = os.environ.get("WHERRY_FLIGHT_URL", "grpc://127.0.0.1:7072")

spark = session("orders")
orders = (
    spark.readStream.format("wherry")
    .option("url", URL)
    .option("subscribe", "shop.orders,shop.returns")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 100_000)
    .option("failOnDataLoss", "true")
    .load()
)
read = orders.select(
    f.col("key").cast("string").alias("key"),
    f.from_json(f.col("value").cast("string"), "id LONG, amount DOUBLE").alias("order"),
    "topic",
    "timestamp",
)
large = f.abs("order.amount") >= 100
sorted_out = read.filter("order.id IS NOT NULL").select(
    f.when(large, "shop.large").otherwise("shop.small").alias("topic"),
    "key",
    f.to_json(f.struct("order.*", f.col("topic").alias("of"))).alias("value"),
)
query = (
    sorted_out.writeStream.format("wherry")
    .option("url", URL)
    .option("checkpointLocation", "sorted-orders.checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
