"""Take the picture of the page of services, of a peer that is called meanwhile.

python -m tests.console.shoot_services docs/images
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

import msgspec
from playwright.async_api import async_playwright

import wherry
from tests.browsers import FLAGS, chromium

billing, mails = wherry.Service("billing", max_concurrent=50), wherry.Service("mails")


class Order(msgspec.Struct):
    """What `billing.total` takes."""

    items: list[int]


@billing.method(max_concurrent=8, max_waiting=20)
async def total(order: Order) -> int:
    """Add the prices of an order."""
    await asyncio.sleep(random.uniform(0.02, 0.2))
    return sum(order.items)


@billing.method(max_concurrent=3)
async def charge(order: Order) -> None:
    """Charge an order to the card of its customer."""
    await asyncio.sleep(random.uniform(0.05, 0.4))
    if not random.randrange(20):
        raise ValueError("the card was declined")


@billing.method
async def refund(order: Order) -> None:
    """Pay an order back."""


@mails.method(max_concurrent=4, max_waiting=1_000)
async def send(text: str) -> None:
    """Send a mail."""
    await asyncio.sleep(random.uniform(0.1, 0.3))


async def callers(peer: wherry.Peer) -> None:
    """Call until it is cancelled, sometimes more and sometimes less."""
    pace = 30.0
    while True:
        pace = min(60.0, max(8.0, pace + random.uniform(-4, 4)))
        await asyncio.sleep(random.expovariate(pace))
        method, given = random.choice(
            [
                ("billing.total", Order([1])),
                ("billing.total", Order([2])),
                ("billing.charge", Order([1])),
                ("mails.send", ""),
            ]
        )
        started = peer.start_call(method, given, callback=lambda *_: None)
        started.add_done_callback(lambda done: done.cancelled() or done.exception())  # refused is what it may be


async def main(home: Path, warm_s: float) -> None:
    """Call for a while, then take the picture."""
    async with wherry.peer(provides=[billing, mails]) as peer, async_playwright() as play:
        for _ in range(3):
            await peer.call("billing.refund", Order([1]))
        calling = asyncio.create_task(callers(peer))
        browser = await play.chromium.launch(executable_path=chromium(), args=FLAGS, headless=True)
        page = await browser.new_page(viewport={"width": 1360, "height": 910}, locale="en-GB")
        await page.goto(f"{peer.url}/services")
        await asyncio.sleep(warm_s)
        await page.get_by_role("button", name="Pause billing.refund").click()
        await asyncio.sleep(7)
        await page.screenshot(path=home / "services-page.png")
        calling.cancel()
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, nargs="?", default=Path("docs/images"), help="where it goes (docs/images)")
    parser.add_argument("--warm-s", type=float, default=75, help="calls before it, for full charts (75)")
    given = parser.parse_args()
    asyncio.run(main(given.home, given.warm_s))
