"""Ask for a price, send orders, and see what becomes of them.

Run the application, then: python send.py
"""

import asyncio

from app import URL, Order, Priced, priced
from faststream.rabbit import RabbitBroker, RabbitQueue

PATIENCE_S = 60


async def main() -> None:
    """One of each."""
    broker, told = RabbitBroker(URL, logger=None), asyncio.Queue[Priced]()

    @broker.subscriber(RabbitQueue("example.faststream.told", auto_delete=True, routing_key="#"), priced)
    async def tell(order: Priced) -> None:
        await told.put(order)

    await broker.start()
    answer = await broker.request("apple", "example.faststream.prices", timeout=PATIENCE_S)
    print("an apple costs", await answer.decode())
    for order in (Order(fruit="apple", count=3, city="Bonn"), Order(fruit="pear", count=1, city="Oslo")):
        await broker.publish(order, "example.faststream.orders", persist=True)
        done = await asyncio.wait_for(told.get(), PATIENCE_S)
        print(f"priced: {done.fruit} for {done.city}, {done.total} in all")
    returned = await broker.publish("plum", "example.faststream.plums")
    print("nobody takes orders for plums:", returned.delivery.reply_code, returned.delivery.reply_text)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(main())
