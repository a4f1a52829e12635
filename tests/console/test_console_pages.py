"""Every page of the console, driven by a real browser against a real node."""

from __future__ import annotations

import re
import time
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.amqp.raw import Raw
from tests.console.asking import ask, bury
from tests.console.conftest import Opening
from tests.integration.served import Served
from tests.stomp.raw import Raw as Stomp

PAGES = ["", "topics", "subscriptions", "messages", "publish", "schedule", "dead", "keys", "connections", "cluster"]
PAGES.append("pipelines")


def toast(page: Page, text: str) -> None:
    expect(page.locator(".toast", has_text=text).first).to_be_visible()


def published(url: str, topic: str) -> int:
    return ask(url, f"GET /v1/topics/{topic}")["stats"]["counters"].get("published", 0)


def test_a_topic_is_made_changed_and_deleted(node: Served, opened: Opening):
    url = node.node.url
    page = opened(url, "topics")
    page.get_by_role("button", name="New topic").first.click()
    page.get_by_label("Name").fill("orders.eu")
    page.get_by_label("Order").select_option("priority")
    page.get_by_label("Partitions").fill("3")
    page.get_by_role("button", name="Create").click()
    toast(page, "Created orders.eu.")
    expect(page.get_by_role("heading", name="orders.eu", level=1)).to_be_visible()
    config = ask(url, "GET /v1/topics/orders.eu")["config"]
    assert (config["order"], config["partitions"]) == ("priority", 3)
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Messages at most").fill("500")
    page.get_by_role("button", name="Save").click()
    toast(page, "Changed orders.eu.")
    assert ask(url, "GET /v1/topics/orders.eu")["config"]["messages_max"] == 500
    expect(page.get_by_role("table", name="Partitions").locator("tbody tr")).to_have_count(3)
    page.get_by_role("button", name="New subscription").click()
    page.get_by_label("Name").fill("packers")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("table", name="Subscriptions").get_by_role("link", name="packers")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    go = page.get_by_role("dialog").get_by_role("button", name="Delete")
    expect(go).to_be_disabled()
    page.get_by_label("Type orders.eu to confirm").fill("orders.eu")
    go.click()
    toast(page, "Deleted orders.eu.")
    assert "orders.eu" not in [each["config"]["name"] for each in ask(url, "GET /v1/topics")["topics"]]


def test_a_bad_value_is_a_toast_that_names_the_field(node: Served, opened: Opening):
    page = opened(node.node.url, "topics", quiet=False)
    page.get_by_role("button", name="New topic").first.click()
    page.get_by_label("Name").fill("x" * 2_000)
    page.get_by_role("button", name="Create").click()
    toast(page, "topic: got")
    expect(page.get_by_role("dialog")).to_be_visible()


@pytest.mark.rows("Q18")
def test_a_topic_that_flows_is_made_and_shown_and_stays_so(node: Served, opened: Opening):
    url = node.node.url
    page = opened(url, "topics", quiet=False)
    page.get_by_role("button", name="New topic").first.click()
    page.get_by_label("Name").fill("flowing")
    page.get_by_label("Mesh").select_option("flow")
    page.get_by_label("Order", exact=True).select_option("timeline")
    page.get_by_role("button", name="Create").click()
    toast(page, "fifo when mesh='flow'")
    page.get_by_label("Order", exact=True).select_option("fifo")
    page.get_by_role("button", name="Create").click()
    toast(page, "Created flowing.")
    assert ask(url, "GET /v1/topics/flowing")["config"]["mesh"] == "flow"
    expect(page.get_by_text("flow: passed on to peers")).to_be_visible()
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_label("Mesh")).to_be_disabled()
    expect(page.get_by_label("Mesh")).to_have_value("flow")
    page.get_by_label("Messages at most").fill("7")
    page.get_by_role("button", name="Save").click()
    toast(page, "Changed flowing.")
    config = ask(url, "GET /v1/topics/flowing")["config"]
    assert (config["mesh"], config["messages_max"]) == ("flow", 7)
    ask(url, "PUT /v1/topics/resting", {})
    page.goto(f"{url}/console#/topics/resting")
    expect(page.get_by_text("safe: this node alone")).to_be_visible()


@pytest.mark.rows("A13", "A14")
def test_publish_then_browse_and_search_without_consuming(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/browse", {})
    ask(url, "PUT /v1/topics/browse/subscriptions/s", {})
    page = opened(url, "publish?topic=browse")
    page.get_by_label("Payload", exact=True).fill('{"order": 77, "items": [{"sku": "tea"}]}')
    page.get_by_label("Key", exact=True).fill("customer-7")
    page.get_by_label("Id", exact=True).fill("order-77")
    page.get_by_role("button", name="Add a header").click()
    page.get_by_label("Header name").fill("region")
    page.get_by_label("Header value").fill("eu")
    page.get_by_role("button", name="Publish", exact=True).click()
    toast(page, "Published 1 message")
    page.get_by_label("Id", exact=True).fill("")
    page.get_by_label("Payload", exact=True).fill("plain text")
    page.get_by_label("Key", exact=True).fill("")
    page.get_by_label("How many").fill("5")
    page.get_by_role("button", name="Publish", exact=True).click()
    toast(page, "Published 5 messages")
    assert published(url, "browse") == 6
    before = ask(url, "GET /v1/topics/browse/subscriptions/s")["stats"]
    page.goto(f"{url}/console#/messages?topic=browse")
    rows = page.get_by_role("table", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.last).to_contain_text("order-77")
    for kind, text in (("key", "customer-7"), ("header", "region:eu"), ("id", "order-77")):
        page.get_by_label("Look by").select_option(kind)
        page.locator("[data-search]").fill(text)
        page.get_by_role("button", name="Show", exact=True).click()
        expect(rows).to_have_count(6 if kind == "header" else 1)
    expect(page.get_by_role("complementary", name="Message")).to_contain_text("region")
    expect(page.get_by_role("tab", name="JSON")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".json")).to_contain_text('sku: "tea"')
    page.get_by_role("tab", name="Hex").click()
    expect(page.locator("pre.hex")).to_contain_text("7b 22 6f 72 64 65 72 22")
    expect(page.get_by_role("complementary", name="Message")).to_contain_text("s: waiting")
    page.get_by_label("Look by").select_option("time")
    page.get_by_label("From").fill("2031-01-01T00:00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("No message fits.")).to_be_visible()
    page.get_by_label("From").fill("2021-01-01T00:00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows).to_have_count(6)
    after = ask(url, "GET /v1/topics/browse/subscriptions/s")["stats"]
    same = ("ready", "leased", "consumers", "lag", "counters")
    assert {name: before[name] for name in same} == {name: after[name] for name in same}, "nothing was consumed"


@pytest.mark.rows("A14")
def test_binary_and_avro_are_readable(node: Served, opened: Opening):
    import base64  # noqa: PLC0415
    import io  # noqa: PLC0415
    import json  # noqa: PLC0415

    import fastavro  # noqa: PLC0415

    url = node.node.url
    fields = [
        {"name": "sku", "type": "string"},
        {"name": "count", "type": ["null", "long"]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "price", "type": "double"},
    ]
    schema = {"type": "record", "name": "Item", "fields": fields}
    value = {"sku": "tea", "count": 9_007_199_254_740_993, "tags": {"hot": 3}, "kind": "B", "price": 2.5}
    whole, bare = io.BytesIO(), io.BytesIO()
    fastavro.writer(whole, schema, [value, value], codec="deflate")
    fastavro.schemaless_writer(bare, schema, value)
    ask(url, "PUT /v1/topics/bytes", {})
    texts = {
        name: base64.b64encode(data).decode()
        for name, data in {"file": whole.getvalue(), "one": bare.getvalue(), "raw": b"\x00\xff\x80Wherry"}.items()
    }
    headers = {"avro-schema": json.dumps(schema)}
    messages = [
        {"id": name, "payload_base64": text, **({"headers": headers} if name == "one" else {})}
        for name, text in texts.items()
    ]
    ask(url, "POST /v1/topics/bytes/messages", messages)
    page = opened(url, "messages?topic=bytes&kind=id&what=file")
    shown = page.locator(".json")
    expect(shown).to_contain_text("9007199254740993")
    expect(page.locator(".payload")).to_contain_text("2 records of Item")
    page.goto(f"{url}/console#/messages?topic=bytes&kind=id&what=one")
    expect(shown).to_contain_text('kind: "B"')
    expect(shown).to_contain_text("hot: 3")
    page.goto(f"{url}/console#/messages?topic=bytes&kind=id&what=raw")
    expect(page.locator("pre.hex")).to_contain_text("00 ff 80 57 68")
    expect(page.locator("pre.hex")).to_contain_text("···Wherry")


@pytest.mark.rows("A4")
def test_what_is_scheduled_is_seen_moved_and_cancelled(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/mails", {"order": "timeline"})
    ask(url, "PUT /v1/topics/mails/subscriptions/sender", {})
    soon = int(time.time() * 1000) + 600_000
    ask(
        url,
        "POST /v1/topics/mails/messages",
        [{"payload": f"mail {n}", "id": f"m{n}", "due_ms": soon + n * 60_000} for n in range(3)],
    )
    page = opened(url, "schedule?topic=mails")
    rows = page.get_by_role("table", name="Scheduled messages").locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page.locator(".timeline .mark")).to_have_count(3)
    rows.filter(has_text="m1").get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    toast(page, "Cancelled m1.")
    expect(rows).to_have_count(2)
    page.locator(".timeline .mark").last.click()
    page.get_by_role("dialog").get_by_role("button", name="+1 d").click()
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    toast(page, "Moved m2.")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="7 d", exact=True).click()
    expect(rows).to_have_count(2)
    listed = ask(url, "GET /v1/topics/mails/subscriptions/sender/scheduled")["messages"]
    assert [(each["id"], each["at_ms"] // 1000) for each in listed] == [
        ("m0", soon // 1000),
        ("m2", soon // 1000 + 86_520),
    ]
    page.locator(".timeline").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("button", name="7 d", exact=True)).to_have_attribute("aria-pressed", "false")


@pytest.mark.rows("A4")
def test_many_scheduled_messages_are_bars_to_zoom_into(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/many", {"order": "timeline"})
    ask(url, "PUT /v1/topics/many/subscriptions/s", {})
    soon = int(time.time() * 1000) + 300_000
    ask(url, "POST /v1/topics/many/messages", [{"payload": "x", "due_ms": soon + n * 15_000} for n in range(200)])
    page = opened(url, "schedule?topic=many")
    bars = page.locator(".timeline .bar")
    expect(bars.first).to_be_visible()
    expect(page.get_by_text("200 messages in this range")).to_be_visible()
    bars.nth(5).click()
    expect(page.locator(".timeline .mark").first).to_be_visible()


@pytest.mark.rows("A11", "A12")
def test_dead_letters_by_reason_are_previewed_redriven_with_progress_and_discarded(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/bills", {})
    ask(url, "PUT /v1/topics/bills/subscriptions/printer", {})
    bury(url, "bills", "printer", {"address unknown": 30, "paper jam": 2}, error="lp0 on fire")
    page = opened(url, "dead?topic=bills")
    card = page.locator(".reason").filter(has_text="address unknown")
    expect(card).to_contain_text("30")
    expect(card).to_contain_text("lp0 on fire")
    card.get_by_role("button", name="Show").click()
    shown = page.get_by_role("dialog")
    expect(shown.locator("details.letter")).to_have_count(30)
    shown.locator("summary").first.click()
    expect(shown.locator(".json").first).to_contain_text('why: "address unknown"')
    expect(shown.locator("details.letter").first).to_contain_text("Attempts")
    page.keyboard.press("Escape")
    card.get_by_role("button", name="Redrive").click()
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("30 dead letters fit this filter")
    box.get_by_label("Messages a second").fill("10")
    box.get_by_label("By").fill("ann")
    box.get_by_role("button", name="Redrive", exact=True).click()
    bar = box.get_by_role("progressbar")
    expect(bar).to_be_visible()
    page.wait_for_function(
        "() => { const b = document.querySelector('dialog progress'); return b && b.value > 0 && b.value < 1 }"
    )
    box.get_by_role("button", name="Stop", exact=True).click()
    expect(box).to_contain_text("Stopped.")
    left = ask(url, "GET /v1/topics/bills/dead/reasons?reason=address")["count"]
    assert 0 < left < 30, "what was not sent back is dead still"
    box.get_by_label("Messages a second").fill("1000")
    box.get_by_role("button", name="Redrive", exact=True).click()
    expect(box).to_contain_text("sent back: they wait again")
    assert ask(url, "GET /v1/topics/bills/dead/reasons?reason=address")["count"] == 0
    page.keyboard.press("Escape")
    expect(page.locator(".reason")).to_have_count(1)
    expect(page.get_by_role("table", name="Who did what")).to_contain_text("ann")
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 dead letters of printer")
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    toast(page, "Discarded 2 dead letters.")
    assert ask(url, "GET /v1/topics/bills")["stats"]["dead"] == 0


@pytest.mark.rows("A11", "A12")
def test_dead_letters_of_no_subscription_are_redriven_and_a_wide_filter_warns(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/full", {"messages_max": 1, "overflow": "dead-letter"})
    ask(url, "PUT /v1/topics/full/subscriptions/s", {})
    ask(url, "POST /v1/topics/full/messages", [{"payload": "x"}] * 3)
    page = opened(url, "dead?topic=full", quiet=False)
    card = page.locator(".reason").filter(has_text="of no subscription")
    expect(card.locator(".big")).to_have_text("2")
    card.get_by_role("button", name="Redrive").click()
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("the topic has room for 0 only")
    box.get_by_role("button", name="Redrive", exact=True).click()
    toast(page, "messages of the topic")
    page.keyboard.press("Escape")
    ask(url, "PATCH /v1/topics/full", {"messages_max": 100})
    bury(url, "full", "s", {"bad": 1, "bad address": 2})
    page.reload()
    page.locator(".reason").filter(has=page.get_by_role("heading", name="bad", exact=True)).get_by_role(
        "button", name="Discard"
    ).click()
    expect(page.get_by_role("dialog")).to_contain_text("3 dead letters of s")


def test_subscriptions_show_slow_consumers_and_those_that_were_cut_off(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/slow", {"messages_max": 10})
    ask(url, "PUT /v1/topics/slow/subscriptions/idle", {})
    ask(url, "PUT /v1/topics/slow/subscriptions/tight", {"buffer_messages": 2})
    ask(url, "POST /v1/topics/slow/messages", [{"payload": "x"}] * 8)
    with pytest.raises(AssertionError, match="429"):
        ask(url, "POST /v1/topics/slow/messages", [{"payload": "x"}] * 8)
    ask(url, "POST /v1/topics/slow/subscriptions/idle/pull?messages=3&consumer=ann")
    page = opened(url, "subscriptions?name=idle")
    row = page.get_by_role("table", name="Subscriptions").locator("tbody tr").filter(has_text="slow")
    row.get_by_role("button", name="idle").click()
    consumers = page.get_by_role("table", name="Consumers")
    expect(consumers).to_contain_text("ann")
    expect(consumers).to_contain_text("busy")
    cut = page.get_by_role("table", name="Cut off")
    expect(cut).to_contain_text("tight")
    expect(page.get_by_role("table", name="Bounds that were hit")).to_contain_text("limit-reached")
    consumers.get_by_role("button", name="Dismiss").click()
    toast(page, "ann left")
    assert ask(url, "GET /v1/topics/slow/subscriptions/idle/consumers")["consumers"] == []
    expect(row.locator(".badge")).to_have_text("no consumer")


def test_the_overview_lives(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/live", {})
    ask(url, "PUT /v1/topics/live/subscriptions/s", {})
    page = opened(url)
    expect(page.locator(".status")).to_have_text("live")
    row = page.get_by_role("table", name="Topics").locator("tbody tr").filter(has_text="live")
    ask(url, "POST /v1/topics/live/messages", [{"payload": "x"}] * 40)
    expect(row.locator("td").nth(5)).to_have_text("40")
    page.wait_for_function("() => document.querySelectorAll('.chart .line')[0].getAttribute('d').split('L').length > 2")
    assert len(page.locator(".spark .line").first.get_attribute("d") or "") > 5
    tile = page.locator(".tile").filter(has=page.get_by_text("Ready", exact=True)).locator("dd")
    expect(tile).not_to_have_text("–")


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_at_phone_width_and_in_the_dark(node: Served, opened: Opening, width: int, scheme: str):
    url = node.node.url
    ask(url, "PUT /v1/topics/a.rather-long.name-of-a-topic.that.nobody.would.shorten", {"order": "timeline"})
    ask(url, "PUT /v1/topics/pages", {})
    ask(url, "PUT /v1/topics/pages/subscriptions/s", {})
    ask(url, "POST /v1/topics/pages/messages", [{"payload": "word " * 200, "key": "k" * 200}] * 3)
    bury(url, "pages", "s", {"reason " * 20: 1})
    page = opened(url, width=width, scheme=scheme)
    for place in [*PAGES, "topics/pages", "messages?topic=pages", "dead?topic=pages"]:
        page.goto(f"{url}/console#/{place}")
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator(".loading")).to_have_count(0)
        assert page.locator(".empty.bad").count() == 0, place
        wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{place or 'overview'} is {wide} pixels too wide"
    shade = page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
    assert (
        sum(map(int, re.findall(r"\d+", shade)[:3])) < 150
        if scheme == "dark"
        else sum(map(int, re.findall(r"\d+", shade)[:3])) > 600
    )


def test_the_theme_can_be_switched_and_stays(node: Served, opened: Opening):
    page = opened(node.node.url)
    shade = "() => getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(shade)
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(shade) != light
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


def test_a_phone_has_a_menu(node: Served, opened: Opening):
    page = opened(node.node.url, width=375)
    nav = page.get_by_role("navigation", name="Pages")
    expect(nav).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    nav.get_by_role("link", name="Publish").click()
    expect(page.get_by_role("heading", name="Publish", level=1)).to_be_visible()
    expect(nav).to_be_hidden()


def test_connections_of_amqp_are_listed_with_their_channels(node: Served, opened: Opening):
    url, amqp = node.node.url, node.node.amqp_url
    assert amqp is not None
    with Raw(amqp.replace("amqp://", "amqp://guest:guest@")).opened():
        page = opened(url, "connections")
        row = page.get_by_role("table", name="Connections").locator("tbody tr").first
        expect(row).to_contain_text("AMQP 0-9-1")
        row.get_by_role("button", name="Channels").click()
        expect(page.get_by_role("table", name="Channels").locator("tbody tr")).to_have_count(1)


def test_sessions_of_stomp_are_listed_with_what_they_hold_and_those_that_were_cut_off(node: Served, opened: Opening):
    url, place = node.node.url, urlsplit(node.node.stomp_url or "")
    with Stomp(place.port or 0) as good, Stomp(place.port or 0) as bad:
        for client in (good, bad):
            client.connect()
        good.done("SUBSCRIBE", id="4", destination="/queue/looked-at", ack="client")
        good.send("SEND", b"one", destination="/queue/looked-at")
        good.expect("MESSAGE")
        page = opened(url, "connections")
        row = page.get_by_role("table", name="Sessions").locator("tbody tr").first
        expect(row).to_contain_text("tcp")
        row.get_by_role("button", name="Subscriptions").click()
        held = page.get_by_role("table", name="Subscriptions").locator("tbody tr")
        expect(held).to_contain_text("/queue/looked-at")
        expect(held).to_contain_text("1 · ")
        bad.done("SUBSCRIBE", id="5", destination="/queue/overrun", ack="client", wherry_buffer_messages="1")
        for _ in range(2):
            good.send("SEND", b"much", destination="/queue/overrun")
        while bad.next().command != "ERROR":
            pass
        page.get_by_role("button", name="Refresh STOMP").click()
        expect(page.get_by_role("table", name="Cut off")).to_contain_text("buffer overrun")


def test_nothing_on_a_live_page_jumps(node: Served, opened: Opening):
    url = node.node.url
    for number in range(4):
        ask(url, f"PUT /v1/topics/calm-{number}", {})
        ask(url, f"PUT /v1/topics/calm-{number}/subscriptions/s", {})
    page = opened(url)
    page.wait_for_function("() => document.querySelectorAll('.chart .line')[0].getAttribute('d').split('L').length > 2")
    page.evaluate(
        """() => {
            window.jumped = [];
            new PerformanceObserver((list) => list.getEntries().forEach((each) => window.jumped.push(each.value)))
                .observe({type: "layout-shift", buffered: false});
        }"""
    )
    looks = "() => document.querySelectorAll('.chart .line')[0].getAttribute('d').split('L').length"
    before = page.evaluate(looks)
    for number in range(4):
        ask(url, f"POST /v1/topics/calm-{number}/messages", [{"payload": "x"}] * 1_500 * (number + 1))
    page.wait_for_function(f"() => ({looks})() >= {before + 4}")
    assert sum(page.evaluate("() => window.jumped")) < 0.01


def test_queries_of_spark_are_listed_once_they_report(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/spark.read", {})
    ask(url, "POST /v1/topics/spark.read/messages", [{"payload": "one"}, {"payload": "two"}])
    page = opened(url, "pipelines")
    expect(page.get_by_text("No query reports itself")).to_be_visible()
    report = {"name": "to-lake", "state": "running", "positions": {"spark.read": {"0": 1}}, "batch": 7, "rows": 1}
    ask(url, "PUT /v1/queries/3f1c", report)
    row = page.get_by_role("table", name="Queries of Spark").locator("tbody tr")
    expect(row).to_contain_text("to-lake")
    expect(row).to_contain_text("running")
    expect(row.locator("td[data-head='Not read']")).to_have_text("1")
    ask(url, "PUT /v1/queries/3f1c", report | {"state": "failed", "positions": {"spark.read": {"0": 2}}})
    expect(row).to_contain_text("failed")
    expect(row.locator("td[data-head='Not read']")).to_have_text("0")
