"""Lively, believable data for a console to show: a shop with orders, payments, mails to come and things that fail.

python -m tests.console.fill http://127.0.0.1:7070 --seconds 600
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import random
import threading
import time
from typing import Any

import fastavro

from tests.console.asking import ask

TOPICS: dict[str, dict[str, Any]] = {
    "orders.eu": {"partitions": 4, "order": "priority"},
    "orders.us": {"partitions": 4, "order": "priority"},
    "payments": {"partitions": 2, "messages_max": 200_000},
    "mails": {"order": "timeline"},
    "shipments": {"partitions": 3},
    "telemetry": {"partitions": 8, "keep": "bytes", "keep_bytes": 50_000_000},
    "invoices": {},
}
READERS: dict[str, list[str]] = {
    "orders.eu": ["fulfilment", "analytics"],
    "orders.us": ["fulfilment"],
    "payments": ["ledger", "fraud-check"],
    "mails": ["sender"],
    "shipments": ["tracking"],
    "telemetry": ["dashboards", "spark-rollup"],
    "invoices": ["printer"],
}
ITEMS = ["teapot", "oolong 100 g", "jasmine pearls", "gaiwan", "matcha whisk", "assam 250 g", "strainer"]
TOWNS = ["Utrecht", "Graz", "Porto", "Malmö", "Kraków", "Cork", "Turin", "Lyon"]
FAULTS = {
    "card expired": "issuer answered 54: expired card",
    "address not found": "geocoder: no match for 'Lindenstr. 4711, 9999 Nowhere'",
    "gave up after 16 attempts": "HTTP 503 from ledger.internal after 10,000 ms",
}
KEYS = {
    "checkout": [("publish", "orders.*"), ("publish", "payments")],
    "warehouse": [("consume", "orders.*"), ("consume", "shipments"), ("publish", "shipments")],
    "analytics": [("consume", "*")],
    "ann": [("admin", "*")],
}
INVOICE = {
    "type": "record",
    "name": "Invoice",
    "namespace": "shop",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "double"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "int"}],
                },
            },
        },
    ],
}


def order(number: int) -> dict[str, Any]:
    """Make an order as a shop would write it."""
    lines: list[dict[str, Any]] = [
        {"item": random.choice(ITEMS), "count": random.randint(1, 4), "price": random.randint(4, 60)}
        for _ in range(random.randint(1, 4))
    ]
    payload: dict[str, Any] = {
        "order": 100_000 + number,
        "customer": {"id": random.randint(1, 400), "town": random.choice(TOWNS)},
        "lines": lines,
        "total": sum(line["count"] * line["price"] for line in lines),
        "gift": random.random() < 0.1,
    }
    return {
        "payload": payload,
        "key": f"customer-{payload['customer']['id']}",
        "priority": random.choice([10, 10, 10, 5, 1]),
        "headers": {"content-type": "application/json", "region": "eu", "source": random.choice(["web", "app"])},
    }


def invoice(number: int) -> dict[str, Any]:
    """Make an invoice in Avro, its schema in a header."""
    found = io.BytesIO()
    lines = [{"item": random.choice(ITEMS), "count": random.randint(1, 5)} for _ in range(3)]
    record = {
        "number": number,
        "customer": random.choice(TOWNS),
        "total": random.randint(900, 20_000) / 100,
        "lines": lines,
    }
    fastavro.schemaless_writer(found, INVOICE, record)
    headers = {"content-type": "avro/binary", "avro-schema": json.dumps(INVOICE)}
    return {
        "payload_base64": base64.b64encode(found.getvalue()).decode(),
        "headers": headers,
        "id": f"invoice-{number}",
    }


def small(topic: str, number: int) -> dict[str, Any]:
    """Make the other messages of the shop."""
    if topic.startswith("orders"):
        return order(number)
    if topic == "payments":
        return {
            "payload": {
                "order": 100_000 + number,
                "amount": random.randint(5, 300),
                "method": random.choice(["card", "sepa", "paypal"]),
            },
            "key": f"order-{100_000 + number}",
        }
    if topic == "shipments":
        return {
            "payload": {"parcel": f"PX{number:07d}", "to": random.choice(TOWNS), "grams": random.randint(80, 4_000)},
            "key": f"PX{number:07d}",
        }
    return {
        "payload": {
            "host": f"web-{random.randint(1, 12)}",
            "cpu": round(random.random(), 3),
            "rss": random.randint(200, 900) << 20,
        },
        "key": f"web-{random.randint(1, 12)}",
    }


def mail(at_ms: int, number: int) -> dict[str, Any]:
    kind = random.choice(
        ["How was your tea?", "Your parcel arrives today", "Your basket misses you", "Invoice reminder"]
    )
    return {
        "payload": {"to": f"customer-{random.randint(1, 400)}", "subject": kind},
        "id": f"mail-{number}",
        "due_ms": at_ms,
        "key": f"customer-{number % 400}",
    }


def prepare(url: str) -> None:
    """Make topics, subscriptions, scheduled messages and dead letters."""
    random.seed(7)
    for topic, config in TOPICS.items():
        ask(url, f"PUT /v1/topics/{topic}", config)
        for name in READERS[topic]:
            ask(url, f"PUT /v1/topics/{topic}/subscriptions/{name}", {})
    ask(url, "PUT /v1/topics/telemetry/subscriptions/old-dashboard", {"buffer_messages": 500})
    now = int(time.time() * 1000)
    times = [now + 60_000 + int(abs(random.gauss(0.35, 0.25)) * 3_600_000) for _ in range(70)]
    times += [now + random.randint(1, 6) * 86_400_000 + random.randint(-7_200_000, 7_200_000) for _ in range(240)]
    ask(url, "POST /v1/topics/mails/messages", [mail(at, n) for n, at in enumerate(times)])
    ask(url, "POST /v1/topics/invoices/messages", [invoice(20_260_000 + n) for n in range(24)])
    for (reason, error), count in zip(FAULTS.items(), (214, 38, 9), strict=True):
        ask(url, "POST /v1/topics/payments/messages", [small("payments", n) for n in range(count)])
        pulled = ask(url, f"POST /v1/topics/payments/subscriptions/ledger/pull?messages={count}")["messages"]
        ask(
            url,
            "POST /v1/topics/payments/subscriptions/ledger/dead-letter",
            {"receipts": [each["receipt"] for each in pulled], "reason": reason, "error": error},
        )
    ask(url, "POST /v1/topics/orders.eu/messages", [order(n) for n in range(60)])
    base = "/v1/topics/orders.eu/subscriptions/fulfilment"
    pulled = ask(url, f"POST {base}/pull?messages=12")["messages"]
    ask(
        url,
        f"POST {base}/dead-letter",
        {
            "receipts": [each["receipt"] for each in pulled],
            "reason": "address not found",
            "error": FAULTS["address not found"],
        },
    )
    ask(url, "POST /v1/topics/payments/dead/redrive", {"filter": {"reason": "gave up", "limit": 4}, "by": "ann"})
    for name, rights in KEYS.items():
        ask(
            url,
            "POST /v1/keys",
            {"name": name, "rights": [dict(zip(("verb", "topics"), each, strict=True)) for each in rights]},
        )


RATES = {"orders.eu": 46, "orders.us": 21, "payments": 38, "shipments": 16, "telemetry": 180}


def produce(url: str, topic: str, stop: threading.Event) -> None:
    """Publish a wave around the rate of the topic, a batch twice a second."""
    number, phase = 0, random.random() * 6
    while not stop.wait(0.5):
        wanted = RATES[topic] / 2 * (1 + 0.35 * math.sin(time.monotonic() / 17 + phase) + random.gauss(0, 0.06))
        batch = [small(topic, number + n) for n in range(max(1, int(wanted)))]
        number += len(batch)
        ask(url, f"POST /v1/topics/{topic}/messages", batch)


def consume(url: str, topic: str, name: str, consumer: str, stop: threading.Event) -> None:
    """Pull, hold for a moment, ack; a few fail."""
    base = f"/v1/topics/{topic}/subscriptions/{name}"
    pause, most = (0.9, 30) if name == "fraud-check" else (0.15, 400)
    while not stop.is_set():
        pulled = ask(url, f"POST {base}/pull?messages={most}&wait_ms=500&consumer={consumer}")["messages"]
        receipts = [each["receipt"] for each in pulled]
        stop.wait(pause)
        bad = [each for each in receipts if random.random() < 0.004]
        good = [each for each in receipts if each not in bad]
        if good:
            ask(url, f"POST {base}/ack", {"receipts": good})
        if bad:
            ask(url, f"POST {base}/nack", {"receipts": bad, "error": "try again"})


def traffic(url: str, stop: threading.Event) -> list[threading.Thread]:
    """Start all threads that publish and consume until `stop`."""
    jobs: list[tuple[Any, ...]] = [(produce, url, topic, stop) for topic in RATES]
    for topic in (*RATES, "mails"):
        for name in READERS[topic]:
            several = range(2 if topic.startswith("orders") else 1)
            jobs += [(consume, url, topic, name, f"{name}-{number + 1}", stop) for number in several]
    threads = [threading.Thread(target=job[0], args=job[1:], daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    prepare(given.url)
    stop = threading.Event()
    threads = traffic(given.url, stop)
    try:
        time.sleep(given.seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


if __name__ == "__main__":
    main()
