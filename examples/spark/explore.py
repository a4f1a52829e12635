# %% [markdown]
# # A day of orders
# A notebook as a script: editors that know `# %%` run it cell by cell; python runs it whole.
# Run a broker (`wherry serve`), then: python examples/spark/explore.py

# %% What is needed
import os
from pathlib import Path

import matplotlib
import pyarrow as pa
from pyspark.sql import functions as f

from wherry.spark import session
from wherry.spark.link import FlightLink

matplotlib.use("Agg")
import matplotlib.pyplot as plt

URL = os.environ.get("WHERRY_FLIGHT_URL", "grpc://127.0.0.1:7072")
OUT = Path(os.environ.get("EXAMPLE_OUT", "."))
TOPIC = "example.day"
spark = session("explore")

# %% A day of orders, made up: more at noon, three cities, a few broken
FlightLink(URL).action("create-topic", {"name": TOPIC, "partitions": 2})
made = (
    spark.range(20_000)
    .withColumn("hour", (12 + 4 * f.randn(7)).cast("int") % 24)
    .withColumn("city", f.expr("element_at(array('Bonn', 'Oslo', 'Lyon'), cast(id % 3 + 1 AS INT))"))
    .withColumn("amount", f.round(f.exp(3 + f.randn(11)), 2))
)
body = f.when(f.col("id") % 500 == 0, f.lit("{broken")).otherwise(f.to_json(f.struct("hour", "city", "amount")))
messages = made.select(f.col("city").alias("key"), body.alias("payload"))
messages.write.format("wherry").options(url=URL, topic=TOPIC).mode("append").save()

# %% Read it: what does not decode keeps its bytes and says why
orders = (
    spark.read.format("wherry")
    .options(url=URL, topic=TOPIC, payload="json", payloadSchema="hour INT, city STRING, amount DOUBLE")
    .load()
    .cache()
)
orders.groupBy(f.coalesce("error", f.lit("good")).alias("state")).count().show(truncate=False)

# %% By hour and city, as Arrow
hours: pa.Table = (
    orders.filter("error IS NULL AND value.hour >= 0")
    .groupBy("value.hour", "value.city")
    .agg(f.count("*").alias("orders"), f.median("value.amount").alias("median"))
    .orderBy("hour", "city")
    .toArrow()
)
print(hours.slice(0, 5).to_pandas())

# %% See it
frame = hours.to_pandas()
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
frame.pivot_table(index="hour", columns="city", values="orders", fill_value=0).plot.bar(
    stacked=True, ax=left, width=0.85, title="Orders by hour", xlabel="hour", color=["#0b6fb8", "#d9640c", "#2a8c5b"]
)
amounts = orders.filter("error IS NULL").select("value.amount").toArrow()["amount"].to_numpy()
right.hist(amounts[amounts < 150], bins=60, color="#0b6fb8")
right.set(title="Amounts", xlabel="amount", ylabel="orders")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(OUT / "explore.png", dpi=120)
print(f"the picture is {OUT / 'explore.png'}")

# %% Done
spark.stop()
