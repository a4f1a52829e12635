"""What the console shows is what is so, and what it does is done to what it shows."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.asking import ask, bury
from tests.console.conftest import Opening
from tests.integration.served import Served
from wherry.wire.http.api import sampling


def rows_of(page: Page, table: str = "Messages"):
    return page.get_by_role("table", name=table).locator("tbody tr")


@pytest.mark.rows("A13")
def test_cancel_takes_the_message_that_is_shown_whatever_was_chosen_meanwhile(node: Served, opened: Opening):
    url = node.node.url
    for name in ("race.one", "race.two"):
        ask(url, f"PUT /v1/topics/{name}", {})
        ask(url, f"PUT /v1/topics/{name}/subscriptions/s", {})
        ask(url, f"POST /v1/topics/{name}/messages", [{"payload": f"of {name}"}])
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page = opened(url, "messages?topic=race.two")
    expect(rows_of(page)).to_contain_text(["of race.two"])
    page.route("**/v1/topics/race.one/messages?**", hold)
    page.get_by_label("Topic").select_option("race.one")
    page.wait_for_function("() => document.querySelector('.loading')")
    while not held:
        page.wait_for_timeout(20)
    page.get_by_label("Topic").select_option("race.two")
    expect(rows_of(page)).to_contain_text(["of race.two"])
    with page.expect_response("**/v1/topics/race.one/messages?**") as late:
        held[0].continue_()
    late.value.finished()
    page.evaluate("() => new Promise((done) => setTimeout(done, 200))")
    expect(rows_of(page)).to_contain_text(["of race.two"])
    page.get_by_label("Look by").select_option("offset")
    rows_of(page).first.click()
    page.get_by_role("button", name="Cancel message").click()
    expect(page.get_by_role("dialog")).to_contain_text("0-0 of race.two")
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    expect(page.locator(".toast").last).to_contain_text("Cancelled 0-0.")
    fates = [ask(url, f"GET /v1/topics/race.{name}/messages/0-0/fate")["fate"] for name in ("one", "two")]
    assert fates == ["waiting", "cancelled"]
    page.goto(f"{url}/console#/messages?topic=race.one&kind=offset&what=0")
    page.unroute("**/v1/topics/race.one/messages?**")
    page.get_by_role("button", name="Show", exact=True).click()
    rows_of(page).first.click()
    expect(page.get_by_role("button", name="Cancel message")).to_be_visible()
    page.get_by_label("Topic").select_option("race.two")
    expect(page.get_by_role("button", name="Cancel message")).to_be_hidden()


@pytest.mark.rows("A4")
def test_a_late_schedule_of_another_topic_is_dropped(node: Served, opened: Opening):
    url = node.node.url
    due = int(time.time() * 1000) + 600_000
    for name in ("late.one", "late.two"):
        ask(url, f"PUT /v1/topics/{name}", {"order": "timeline"})
        ask(url, f"PUT /v1/topics/{name}/subscriptions/s", {})
        ask(url, f"POST /v1/topics/{name}/messages", [{"payload": f"of {name}", "due_ms": due}])
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page = opened(url, "schedule?topic=late.two")
    rows = rows_of(page, "Scheduled messages")
    expect(rows).to_contain_text(["of late.two"])
    page.route("**/late.one/subscriptions/s/scheduled**", hold)
    page.get_by_label("Topic").select_option("late.one")
    while not held:
        page.wait_for_timeout(20)
    page.get_by_label("Topic").select_option("late.two")
    with page.expect_response("**/late.one/subscriptions/s/scheduled**"):
        held[0].continue_()
    expect(rows).to_contain_text(["of late.two"])
    rows.first.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("of late.two")
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    expect(page.get_by_text("Nothing is due in this range")).to_be_visible()
    assert len(ask(url, "GET /v1/topics/late.one/subscriptions/s/scheduled")["messages"]) == 1


@pytest.mark.rows("A13")
def test_newest_finds_what_is_far_back_in_any_partition_and_continues(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/sparse", {})
    ask(url, "PUT /v1/topics/sparse/subscriptions/s", {})
    ask(url, "POST /v1/topics/sparse/messages", [{"payload": "x", "id": f"s{n}"} for n in range(700)])
    pulled = ask(url, "POST /v1/topics/sparse/subscriptions/s/pull?messages=700")["messages"]
    done = [each["receipt"] for each in pulled if each["id"] != "s0"]
    ask(url, "POST /v1/topics/sparse/subscriptions/s/ack", {"receipts": done})
    page = opened(url, "messages?topic=sparse")
    rows = rows_of(page)
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("s0")
    ask(url, "PUT /v1/topics/parts", {"partitions": 4})
    ask(url, "PUT /v1/topics/parts/subscriptions/s", {})
    ask(url, "POST /v1/topics/parts/messages?partition=2", [{"payload": "x", "id": f"p{n}"} for n in range(130)])
    page.goto(f"{url}/console#/messages?topic=parts")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("p129")
    expect(page.get_by_text("50 shown, of all partitions")).to_be_visible()
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(130)
    expect(rows.last).to_contain_text("p0")
    expect(page.get_by_role("button", name="Older")).to_have_count(0)
    page.get_by_label("Partition").fill("1")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("Partition 1 is empty")).to_be_visible()
    ask(url, "PUT /v1/topics/spread", {"partitions": 3})
    ask(url, "PUT /v1/topics/spread/subscriptions/s", {})
    for number in range(4):
        wave = [{"payload": "x", "id": f"w{number}-{n}", "key": f"k{n}"} for n in range(30)]
        ask(url, "POST /v1/topics/spread/messages", wave)
    page.goto(f"{url}/console#/messages?topic=spread")
    for shown in (50, 100):
        expect(rows).to_have_count(shown)
        page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(120)
    ids = rows.locator("button").all_inner_texts()
    assert len(set(ids)) == 120, "each once"
    assert ids[0].startswith("w3-")


def test_what_is_open_under_a_row_moves_with_it(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/moving", {})
    for name in ("a", "b"):
        ask(url, f"PUT /v1/topics/moving/subscriptions/{name}", {})
    page = opened(url, "subscriptions?name=moving")
    page.get_by_role("button", name="b", exact=True).click()
    expect(page.locator("tr.extra")).to_contain_text("No consumer is connected")
    ask(url, "POST /v1/topics/moving/messages", [{"payload": "x"}] * 3)
    pulled = ask(url, "POST /v1/topics/moving/subscriptions/a/pull?messages=3")["messages"]
    ask(url, "POST /v1/topics/moving/subscriptions/a/ack", {"receipts": [each["receipt"] for each in pulled]})
    names = page.get_by_role("table", name="Subscriptions").locator("button.name")
    expect(page.get_by_role("table", name="Subscriptions").locator(".badge.bad")).to_have_count(1)
    ask(url, "PUT /v1/topics/moving/subscriptions/c", {"start": "latest"})
    expect(names).to_have_text(["b", "a", "c"])
    assert (
        page.evaluate("() => document.querySelector('tr.extra').previousSibling.querySelector('.name').textContent")
        == "b"
    )


def test_the_skip_link_stays_on_the_page(node: Served, opened: Opening):
    page = opened(node.node.url, "keys")
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()


def test_a_stream_that_fails_at_first_or_falls_silent_is_tried_again(
    node: Served, opened: Opening, monkeypatch: pytest.MonkeyPatch
):
    page = opened(node.node.url, "keys", quiet=False)
    page.route("**/v1/figures", lambda route: route.fulfill(status=503, json={"code": "busy", "detail": "busy"}))
    page.goto(f"{node.node.url}/console#/")
    page.reload()
    expect(page.locator(".status")).to_have_text("reconnecting …")
    page.unroute("**/v1/figures")
    expect(page.locator(".status")).to_have_text("live")
    assert not page.evaluate("() => document.body.classList.contains('stale')")
    monkeypatch.setattr(sampling, "SAMPLE_S", 3_600)
    page.wait_for_function("() => document.body.classList.contains('stale')", timeout=30_000)
    expect(page.locator(".status")).to_have_text("live")


def test_a_line_breaks_where_nothing_is_known_and_an_axis_has_round_marks(node: Served, opened: Opening):
    page = opened(node.node.url)
    drawn = page.evaluate(
        """async () => {
            const { lineChart } = await import("/console/charts.js");
            const { decade } = await import("/console/format.js");
            const series = [{ name: "n", label: "n", tone: "accent" }];
            const chart = lineChart({ title: "t", format: String, mark: decade, log: true, floor: 0.001, series });
            document.querySelector("main").append(chart.el);
            chart.update([0, 1, 2, 9, 10].map((s) => ({ at: s * 1000, n: 60 })));
            return [
                chart.el.querySelector(".line").getAttribute("d").match(/M/g).length,
                [...chart.el.querySelectorAll(".axis text")].map((each) => each.textContent),
            ];
        }"""
    )
    assert drawn[0] == 2
    assert {"100 s", "1 s", "10 ms", "100 µs"} <= set(drawn[1])


def test_numbers_beyond_a_double_are_shown_as_they_were_written(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/numbers", {})
    text = '{"id": 9007199254740993, "far": -123456789012345678901, "text": "say \\"9007199254740993\\" 1", "n": 1.50}'
    ask(url, "POST /v1/topics/numbers/messages", [{"payload": text, "id": "big"}])
    page = opened(url, "messages?topic=numbers&kind=id&what=big")
    shown = page.locator(".json")
    expect(shown).to_contain_text("id: 9007199254740993")
    expect(shown).to_contain_text("far: -123456789012345678901")
    expect(shown).to_contain_text('text: "say \\"9007199254740993\\" 1"')


@pytest.mark.rows("A4")
def test_a_schedule_shows_what_it_did_not_load_zooms_on_purpose_and_drops_what_came(node: Served, opened: Opening):
    url = node.node.url
    now = int(time.time() * 1000)
    ask(url, "PUT /v1/topics/crowd", {"order": "timeline"})
    ask(url, "PUT /v1/topics/crowd/subscriptions/s", {})
    ask(
        url,
        "POST /v1/topics/crowd/messages",
        [{"payload": "x", "due_ms": now + 60_000 + n * 1_000} for n in range(1_200)],
    )
    page = opened(url, "schedule?topic=crowd")
    expect(page.get_by_text("what is hatched is not loaded")).to_be_visible()
    expect(page.locator(".timeline .unknown")).to_have_count(1)
    hour = page.get_by_role("button", name="1 h", exact=True)
    page.locator(".timeline").hover()
    page.mouse.wheel(0, 40)
    page.wait_for_timeout(300)
    expect(hour).to_have_attribute("aria-pressed", "true")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -40)
    page.keyboard.up("Control")
    expect(hour).to_have_attribute("aria-pressed", "false")
    ask(url, "PUT /v1/topics/soon", {"order": "timeline"})
    ask(url, "PUT /v1/topics/soon/subscriptions/s", {})
    soon = int(time.time() * 1000) + 6_000
    due = [{"payload": "x", "id": f"d{n}", "due_ms": soon + n * 600_000} for n in range(2)]
    ask(url, "POST /v1/topics/soon/messages", due)
    page.goto(f"{url}/console#/schedule?topic=soon")
    rows = rows_of(page, "Scheduled messages")
    expect(rows).to_have_count(2)
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("d1")


@pytest.mark.rows("A11")
def test_closing_a_redrive_stops_it_and_shows_that(node: Served, opened: Opening):
    url = node.node.url
    ask(url, "PUT /v1/topics/closing", {})
    ask(url, "PUT /v1/topics/closing/subscriptions/s", {})
    bury(url, "closing", "s", {"bad": 40})
    page = opened(url, "dead?topic=closing")
    page.get_by_role("button", name="Redrive").click()
    page.get_by_label("Messages a second").fill("5")
    page.get_by_role("dialog").get_by_role("button", name="Redrive", exact=True).click()
    page.wait_for_function("() => document.querySelector('dialog progress').value > 0")
    page.get_by_role("button", name="Stop and close").click()
    expect(page.locator(".toast").filter(has_text="Stopped.")).to_contain_text("stay here")
    assert 0 < ask(url, "GET /v1/topics/closing")["stats"]["dead"] < 40


@pytest.mark.rows("A12")
def test_dead_letters_follow_what_dies_and_the_focus_stays(node: Served, opened: Opening):
    url = node.node.url
    for name in ("dying.a", "dying.b"):
        ask(url, f"PUT /v1/topics/{name}", {})
        ask(url, f"PUT /v1/topics/{name}/subscriptions/s", {})
        bury(url, name, "s", {"bad": 1})
    page = opened(url, "dead?topic=dying.a")
    choice = page.get_by_role("group", name="Topic").get_by_role("button", name="dying.b")
    choice.focus()
    for name in ("dying.a", "dying.b"):
        bury(url, name, "s", {"bad": 2})
    expect(choice).to_contain_text("3")
    expect(page.locator(".reason .big")).to_have_text("3")
    expect(choice).to_be_focused()


def test_times_topics_beyond_the_first_and_what_is_gone(node: Served, opened: Opening, monkeypatch: pytest.MonkeyPatch):
    url = node.node.url
    ask(url, "PUT /v1/topics/gone", {})
    ask(url, "PUT /v1/topics/gone/subscriptions/s", {})
    page = opened(url)
    ring = "async () => (await import('/console/live.js')).live.subs.has('[\"gone\",\"s\"]')"
    expect(page.locator(".status")).to_have_text("live")
    page.wait_for_function(ring)
    ask(url, "DELETE /v1/topics/gone/subscriptions/s")
    page.wait_for_function(f"async () => !(await ({ring})())")
    shown = page.evaluate(
        """async () => {
            const { ago, exact, setClock } = await import("/console/format.js");
            const at = Date.UTC(2026, 10, 15, 23, 11, 54);
            setClock(Date.now() + 3_600_000);
            const found = [exact(at), ago(Date.now())];
            setClock(Date.now());
            return [...found, ago(Date.now())];
        }"""
    )
    assert shown == ["16 Nov 2026, 00:11:54", "1.0 h ago", "just now"]
    expect(page.locator(".zone")).to_have_text("Times: Europe/Berlin")
    monkeypatch.setattr(sampling, "TOPICS_MAX", 1)
    expect(page.get_by_text("topics are shown and counted here")).to_contain_text("1 of ")
