"""The pictures of docs/images, taken of a node with lively data.

python -m tests.console.shoot docs/images
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pika
import stomp
from playwright.sync_api import sync_playwright

from tests.browsers import FLAGS, chromium
from tests.console.fill import prepare, traffic
from tests.integration.served import Served, served
from wherry.node.config import FlightSection

SHOTS = [
    # name, place, scheme, width, height, what to do first
    ("overview-light", "", "light", 1360, 980, ""),
    ("overview-dark", "", "dark", 1360, 980, ""),
    ("topic", "topics/orders.eu", "light", 1360, 980, ""),
    ("subscriptions", "subscriptions", "light", 1360, 900, "text=fraud-check"),
    ("messages", "messages?topic=orders.eu&kind=offset&what=0", "light", 1360, 900, "tbody tr >> nth=2"),
    ("avro-dark", "messages?topic=invoices", "dark", 1360, 900, "tbody tr >> nth=1"),
    ("publish", "publish?topic=orders.eu", "light", 1360, 860, ""),
    ("schedule", "schedule?topic=mails", "light", 1360, 860, ""),
    ("schedule-week-dark", "schedule?topic=mails", "dark", 1360, 860, "text=7 d"),
    ("dead", "dead?topic=payments", "light", 1360, 860, ""),
    ("redrive-dark", "dead?topic=payments", "dark", 1360, 860, "text=Redrive … >> nth=0"),
    ("keys", "keys", "light", 1360, 700, ""),
    ("new-topic", "topics?new=1", "light", 1360, 860, ""),
    ("connections", "connections", "dark", 1360, 860, "button:has-text('Subscriptions') >> nth=1"),
    ("cluster", "cluster", "light", 1360, 700, ""),
    ("pipelines", "pipelines", "light", 1360, 700, ""),
    ("phone", "", "light", 375, 812, ""),
    ("phone-dark", "topics", "dark", 375, 812, ""),
]


@contextmanager
def clients(node: Served) -> Iterator[None]:
    """Open three connections of AMQP, one of them with two channels, and two of STOMP with what they hold."""
    amqp, stomps = node.node.amqp_url, node.node.stomp_url
    assert amqp is not None
    assert stomps is not None
    with ExitStack() as stack:
        for number in range(3):
            connection = pika.BlockingConnection(pika.URLParameters(amqp.replace("amqp://", "amqp://guest:guest@")))
            stack.callback(connection.close)
            for _ in range(2 if number == 0 else 1):
                channel = connection.channel()
                channel.basic_qos(prefetch_count=20)
                channel.queue_declare(f"reports-{number}")
                channel.basic_consume(f"reports-{number}", lambda *_: None)
        place = urlsplit(stomps)
        for number in range(2):
            session = stomp.Connection12([(place.hostname, place.port)])
            session.connect("guest", "guest", wait=True)
            stack.callback(session.disconnect)
            buffer = {"wherry-buffer-messages": "100"}
            session.subscribe(f"/queue/reports-{number}", id="1", ack="client", headers=buffer)
            session.subscribe("/topic/prices.*", id="2", ack="auto")
        for _ in range(7):
            session.send("/queue/reports-1", "{}")
        time.sleep(1)  # the message has arrived
        yield


def main(home: Path, warm_s: float = 75, only: str = "") -> None:
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), flight=FlightSection(enabled=False)) as node,
        sync_playwright() as play,
    ):
        url = node.node.url
        prepare(url)
        threads = traffic(url, stop)
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS, headless=True)
        pages = {}
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, locale="en-GB", timezone_id="Europe/Berlin")
            pages[scheme] = context.new_page()
            pages[scheme].goto(f"{url}/console#/")
        pages["light"].wait_for_timeout(warm_s * 1000)
        for name, place, scheme, width, height, first in (each for each in SHOTS if only in each[0]):
            page, connected = pages[scheme], ExitStack()
            if name == "connections":
                connected.enter_context(clients(node))
            page.set_viewport_size({"width": width, "height": height})
            page.goto(f"{url}/console#/{place}")
            page.wait_for_timeout(2_500)
            if first:
                page.locator(first).first.click()
                page.wait_for_timeout(1_500)
            if name.startswith("redrive"):
                page.get_by_label("Messages a second").fill("30")
                page.get_by_role("dialog").get_by_role("button", name="Redrive", exact=True).click()
                page.wait_for_timeout(3_500)
            page.screenshot(path=str(home / f"console-{name}.png"))
            page.keyboard.press("Escape")
            connected.close()
        stop.set()
        for thread in threads:
            thread.join(10)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, nargs="?", default=Path("docs/images"), help="where they go (docs/images)")
    parser.add_argument("--warm-s", type=float, default=75, help="traffic before the first, for full charts (75)")
    parser.add_argument("--only", default="", help="those with this in their name")
    given = parser.parse_args()
    main(given.home, given.warm_s, given.only)
