"""The quick start of FastStream's documentation; where the broker is, and names of queues, come from outside."""

import os

from faststream import FastStream
from faststream.rabbit import RabbitBroker
from pydantic import BaseModel, Field, PositiveInt

broker = RabbitBroker(os.environ["AMQP_URL"])
app = FastStream(broker)


class User(BaseModel):
    """A user that registers."""

    user: str = Field(..., examples=["John"])
    user_id: PositiveInt = Field(..., examples=["1"])


@broker.subscriber(f"{os.environ['NAME']}-in")
@broker.publisher(f"{os.environ['NAME']}-out")
async def handle_msg(data: User) -> str:
    """Greet."""
    return f"User: {data.user} - {data.user_id} registered"
