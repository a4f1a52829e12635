"""The application of the example.

Run a broker (`wherry serve`), then: faststream run app:app
"""

import os

from faststream import FastStream
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue
from pydantic import BaseModel

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672")
PRICES = {"apple": 2, "pear": 3}

broker = RabbitBroker(URL)
app = FastStream(broker)
priced = RabbitExchange("example.faststream.priced", type=ExchangeType.TOPIC)


class Order(BaseModel):
    """So many of a fruit, for a city."""

    fruit: str
    count: int
    city: str


class Priced(Order):
    """An order, and what it costs."""

    total: int


@broker.subscriber(RabbitQueue("example.faststream.prices"))
async def price(fruit: str) -> int:
    """Answer a question."""
    return PRICES[fruit]


@broker.subscriber(RabbitQueue("example.faststream.orders"))
async def take(order: Order) -> None:
    """Price an order, and tell whoever wants to know of its city."""
    done = Priced(**order.model_dump(), total=order.count * PRICES[order.fruit])
    await broker.publish(done, exchange=priced, routing_key=f"{order.city}.{order.fruit}", mandatory=False)
