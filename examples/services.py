"""Two services and a caller, each a peer; they find each other by gossip, and no other process runs."""

import asyncio
import sys

import msgspec

import wherry

SEED = f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 7073}"
prices, billing = wherry.Service("prices"), wherry.Service("billing")


class Order(msgspec.Struct):
    customer: str
    items: dict[str, int]


@prices.method
async def of(item: str) -> int:
    return {"nut": 2, "bolt": 3}[item]


@billing.method(max_concurrent=8)
async def total(order: Order) -> int:
    return sum([await biller.call("prices.of", item) * count for item, count in order.items.items()])


biller = wherry.peer(registry=f"gossip://{SEED}", provides=[billing])


async def main() -> None:
    seed = wherry.peer(registry=f"gossip://{SEED}?port={SEED.partition(':')[2]}", provides=[prices])
    async with seed, biller, wherry.peer(registry=f"gossip://{SEED}") as caller:
        print("total:", await caller.call("billing.total", Order("ann", {"nut": 2, "bolt": 1}), timeout_s=20))


asyncio.run(main())
