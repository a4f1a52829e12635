"""Dead letters as rows: mend some by SQL into new messages, send others back as they are; twice is once.

Run a broker (`wherry serve`), then: python examples/spark/dead_letters.py
"""

import asyncio
import os
import secrets

from wherry import Message, connect
from wherry.spark import session

URL = os.environ.get("WHERRY_FLIGHT_URL", "grpc://127.0.0.1:7072")
HTTP = os.environ.get("WHERRY_URL", "http://127.0.0.1:7070")
TOPIC = "example.mails"


async def fail_some() -> None:
    """A worker that gives up on addresses without an @, and on all of a host that is down."""
    async with connect(HTTP) as client:
        await client.create_topic(TOPIC)
        await client.subscribe(TOPIC, "sender")
        mails = [b"ann@example.org", b"bob at example.org", b"cleo@down.example", b"dora at example.org"]
        await client.publish(TOPIC, [Message(payload=mail) for mail in mails])
        left = len(mails)
        async with client.consumer(TOPIC, "sender") as consumer:
            async for message in consumer:
                if b"@" not in message.payload:
                    await message.dead_letter(reason="address", error="no @ in it")
                elif message.payload.endswith(b"@down.example"):
                    await message.dead_letter(reason="host", error="down.example timed out")
                else:
                    await message.ack()
                left -= 1
                if not left:
                    break


def main() -> None:
    """Look at them, then deal with them."""
    asyncio.run(fail_some())
    spark = session("dead letters")
    dead = spark.read.format("wherry").options(url=URL, table="dead", topic=TOPIC)
    dead.load().createOrReplaceTempView("dead")
    spark.sql("SELECT reason, error, count(*) AS letters FROM dead GROUP BY ALL ORDER BY reason").show(truncate=False)

    mended = spark.sql("""
        SELECT concat('mended-', partition, '-', offset) AS id, replace(cast(payload AS STRING), ' at ', '@') AS payload
        FROM dead WHERE reason = 'address'
    """)
    key = f"mend-{secrets.token_hex(4)}"
    for _ in range(2):  # the key of the commit makes the second a no-op
        mended.write.format("wherry").options(url=URL, topic=TOPIC, commitKey=key).mode("append").save()

    back = spark.sql("SELECT * FROM dead WHERE error LIKE '%timed out%'")
    for _ in range(2):  # what is not dead any more is left alone
        back.write.format("wherry").options(url=URL, table="dead", by="example").mode("append").save()

    rows = spark.read.format("wherry").options(url=URL, topic=TOPIC).load()
    mails = rows.filter("id LIKE 'mended-%'").selectExpr("cast(payload AS STRING) AS mail").collect()
    print("mended:", sorted(row["mail"] for row in mails))
    print("still dead:", sorted(row["reason"] for row in dead.load().collect()))
    spark.stop()


if __name__ == "__main__":
    main()
