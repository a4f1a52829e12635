"""Which sessions are open, what they hold, and which were cut off, as the HTTP port shows it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.stomp.raw import Raw
from tests.stomp.serving import running, until
from tests.stomp.test_stomp_doors import key_for
from wherry.model.catalog.key import Right
from wherry.node.config import StompSection
from wherry.node.stomp import views


def view(url: str, key: str | None = None) -> dict[str, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/stomp/sessions", headers=headers), timeout=10
    ) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.rows("Q3", "A13")
def test_sessions_show_what_they_hold(tmp_path):
    with running(tmp_path) as node, Raw(node.stomp_port or 0) as raw, Raw(node.stomp_port or 0) as silent:
        raw.connect()
        for number in range(3):
            raw.done("SEND", b"%d" % number, destination="/queue/shown")
        raw.done("SUBSCRIBE", id="7", destination="/queue/shown", ack="client", wherry_buffer_messages="2")
        until(lambda: view(node.url)["sessions"][0]["subscriptions"][0]["held_messages"] == 2)
        one, other = view(node.url)["sessions"]
        assert (one["transport"], one["version"], one["user"], one["host"]) == ("tcp", "1.2", "guest", "/")
        assert one["peer"].startswith("127.0.0.1:")
        (subscription,) = one["subscriptions"]
        assert subscription["held_bytes"] > 2
        assert {name: subscription[name] for name in ("id", "destination", "ack", "buffer_messages", "ready")} == {
            "id": "7",
            "destination": "/queue/shown",
            "ack": "client",
            "buffer_messages": 2,
            "ready": 1,
        }
        assert (other["version"], other["host"], other["subscriptions"]) == (None, None, [])
        silent.socket.close()
        until(lambda: len(view(node.url)["sessions"]) == 1)


def test_what_has_arrived_is_not_held_and_each_transport_has_its_name(tmp_path, monkeypatch):
    with running(tmp_path) as node, Raw(node.stomp_port or 0) as raw:
        raw.connect()
        for name in ("1", "2"):
            raw.done("SUBSCRIBE", id=name, destination="/topic/arrived", wherry_buffer_messages="3")
        raw.send("SEND", b"one", destination="/topic/arrived")
        for _ in range(2):
            raw.expect("MESSAGE")
        urllib.request.urlopen(f"{node.url}/v1/stomp/sessions", b"", timeout=10).close()
        one, other = view(node.url)["sessions"]
        assert [(each["held_messages"], each["delivered"]) for each in one["subscriptions"]] == [(0, 1), (0, 1)]
        assert (one["transport"], one["left_off"], other["transport"], other["version"]) == ("tcp", 0, "polling", None)
        monkeypatch.setattr(views, "SUBSCRIPTIONS_MAX", 1)
        one, other = view(node.url)["sessions"]
        assert (len(one["subscriptions"]), one["left_off"], other["left_off"]) == (1, 1, 0)
        monkeypatch.setattr(views, "SHOWN_MAX", 1)
        assert view(node.url)["left_off"] == 1


@pytest.mark.rows("Q3")
def test_sessions_that_were_cut_off_are_shown_with_the_reason(tmp_path):
    with running(tmp_path, StompSection(login_s=0.3)) as node, Raw(node.stomp_port or 0) as raw:
        assert raw.next().command == "ERROR"
        (cut,) = view(node.url)["cut_offs"]
        assert (cut["why"], cut["detail"]) == ("no login", "no CONNECT within 0.3 s")


@pytest.mark.rows("D27")
def test_only_an_administrator_sees_others(tmp_path):
    with running(tmp_path, keys=True) as node:
        for key, code in ((None, 401), (key_for(node, "reader", Right("consume", "*")), 403)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                view(node.url, key)
            with refused.value:
                assert refused.value.code == code
        assert view(node.url, key_for(node, "boss", Right("admin", "*")))["sessions"] == []
