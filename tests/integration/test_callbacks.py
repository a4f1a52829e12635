"""Callbacks: a real node reports the outcomes of messages to their producers, over real sockets."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

import wherry
from tests.integration.hooks import AT_ONCE, SECRET, resolve, run, serving
from tests.integration.receiver import Call, Receiver, until
from wherry.node.webhooks import callbacks, lookups, sender


def outcomes(receiver: Receiver) -> list[dict[str, Any]]:
    return [each for call in receiver.calls for each in msgspec.json.decode(call.body)["outcomes"]]


def fates(receiver: Receiver) -> dict[str, list[str]]:
    """Return the fates that were reported of each message, in order."""
    reported: dict[str, list[str]] = {}
    for each in outcomes(receiver):
        reported.setdefault(each["id"], []).append(each["fate"])
    return reported


def to(receiver: Receiver) -> wherry.PublishOptions:
    return wherry.PublishOptions(callback=receiver.url)


async def prepared(client: wherry.Client) -> None:
    await client.create_topic("jobs")
    await client.subscribe("jobs", "workers", retry=AT_ONCE)


@pytest.mark.rows("K4")
@run
async def test_a_producer_gets_a_report_of_the_delivery_and_of_the_end(tmp_path):
    async with Receiver() as receiver, serving(tmp_path, secret=SECRET) as (_, client):
        await prepared(client)
        await client.publish("jobs", ["a", "b"], to(receiver))
        batch = await client.pull("jobs", "workers")
        await until(lambda: len(outcomes(receiver)) == 2)
        assert fates(receiver) == {"0-0": ["delivered"], "0-1": ["delivered"]}
        await batch.ack([0])
        await batch.dead_letter([1])
        await until(lambda: len(outcomes(receiver)) == 4)
        assert fates(receiver) == {"0-0": ["delivered", "settled"], "0-1": ["delivered", "dead"]}
        last = outcomes(receiver)[-1]
        assert last | {"at_ms": 0} == {
            "topic": "jobs",
            "partition": 0,
            "offset": int(last["id"][2:]),
            "id": last["id"],
            "fate": last["fate"],
            "at_ms": 0,
        }
        assert all(call.is_signed(SECRET) for call in receiver.calls)


@run
async def test_without_a_secret_nothing_is_signed(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await prepared(client)
        await client.publish("jobs", ["a"], to(receiver))
        await client.cancel("jobs", "0-0")
        await until(lambda: outcomes(receiver))
        assert fates(receiver) == {"0-0": ["cancelled"]}
        assert "wherry-signature" not in receiver.calls[0].headers


@run
async def test_a_restart_between_the_end_and_the_report_loses_nothing(tmp_path):
    async with Receiver() as gone:
        pass
    async with serving(tmp_path) as (_, client):
        await prepared(client)
        await client.publish("jobs", ["a", "b", "c"], to(gone))
        await (await client.pull("jobs", "workers")).ack([0, 1])
    async with Receiver(port=gone.port) as receiver, serving(tmp_path) as (_, client):
        await until(lambda: len(outcomes(receiver)) == 2)
        assert fates(receiver) == {"0-0": ["settled"], "0-1": ["settled"]}
        await (await client.pull("jobs", "workers")).ack()
        await until(lambda: len(outcomes(receiver)) == 4)
        assert fates(receiver)["0-2"] == ["delivered", "settled"]
    async with Receiver(port=gone.port) as receiver, serving(tmp_path) as (_, client):
        await client.publish("jobs", ["d"], to(receiver))
        await client.cancel("jobs", "0-3")
        await until(lambda: outcomes(receiver))
        assert fates(receiver) == {"0-3": ["cancelled"]}  # a reported outcome is not reported again


@run
async def test_an_attempt_that_fails_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "FIRST_S", 0.01)
    answers = [500, 404, 302]
    async with Receiver(lambda call: answers.pop() if answers else 200) as receiver, serving(tmp_path) as (_, client):
        await prepared(client)
        await client.publish("jobs", ["a"], to(receiver))
        await (await client.pull("jobs", "workers")).ack()
        await until(lambda: len(receiver.calls) >= 4)
        await until(lambda: fates(receiver)["0-0"][-1] == "settled")


@run
async def test_after_many_attempts_the_node_gives_up_and_logs_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(callbacks, "FIRST_S", 0.001)
    monkeypatch.setattr(callbacks, "CAP_S", 0.01)
    async with Receiver(lambda call: 500) as receiver, serving(tmp_path) as (node, client):
        await prepared(client)
        await client.publish("jobs", ["a"], to(receiver))
        await client.cancel("jobs", "0-0")
        await until(lambda: node.calls.callbacks.given_up == 1)
        await until(lambda: not node.broker.unreported())
        assert len(receiver.calls) == callbacks.ATTEMPTS
        (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert "cannot be reported" in record.getMessage()
        assert record.__dict__["host"] == f"127.0.0.1:{receiver.port}"


@run
async def test_gone_means_given_up_at_once(tmp_path):
    async with Receiver(lambda call: 410) as receiver, serving(tmp_path) as (node, client):
        await prepared(client)
        await client.publish("jobs", ["a"], to(receiver))
        await client.cancel("jobs", "0-0")
        await until(lambda: not node.broker.unreported())
        assert len(receiver.calls) == node.calls.callbacks.given_up == 1


@run
async def test_a_dead_letter_that_is_sent_back_is_reported_again(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await prepared(client)
        await client.publish("jobs", ["a"], to(receiver))
        await (await client.pull("jobs", "workers")).dead_letter()
        await until(lambda: fates(receiver).get("0-0") == ["delivered", "dead"])
        await client.redrive("jobs")
        await (await client.pull("jobs", "workers")).ack()
        await until(lambda: fates(receiver)["0-0"][-1] == "settled")


@run
async def test_a_callback_that_cannot_be_reached_holds_up_no_other(tmp_path):
    async with Receiver() as receiver, Receiver(lambda call: 503) as broken, serving(tmp_path) as (_, client):
        await prepared(client)
        for number in range(50):
            await client.publish("jobs", ["x"], wherry.PublishOptions(callback=f"{broken.url}{number}"))
        await client.publish("jobs", ["y"], to(receiver))
        await (await client.pull("jobs", "workers")).ack()
        await until(lambda: fates(receiver).get("0-50") == ["delivered", "settled"], 3.0)


@run
async def test_a_call_that_was_broken_off_or_not_tried_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "TRIAL_S", 0.05)
    monkeypatch.setattr(callbacks, "FIRST_S", 0.05)
    monkeypatch.setattr(callbacks, "ATTEMPTS", 1)
    monkeypatch.setattr(lookups, "NAMES_MAX", 0)
    resolve(monkeypatch)

    async def slowly(call: Call) -> int:
        await asyncio.sleep(0.3)
        return 200

    async with Receiver(slowly) as slow, Receiver() as quick, serving(tmp_path, calls=4) as (node, client):
        await prepared(client)
        url = f"http://named.example:{quick.port}/"
        for number, callback in enumerate((slow.url, quick.url, url)):
            await client.publish("jobs", ["x"], wherry.PublishOptions(callback=callback))
            await client.cancel("jobs", f"0-{number}")
            await until(lambda: slow.calls)
        await until(lambda: outcomes(quick))
        await until(lambda: len(slow.calls) == 2)
        counts = node.calls.sender.outcomes
        await until(lambda: counts["callback", "not-tried"] >= 3)
        monkeypatch.setattr(lookups, "NAMES_MAX", 10)
        await until(lambda: len(outcomes(quick)) == 2)
        await until(lambda: not node.broker.unreported())
        assert counts["callback", "broken-off"] == 1
        assert node.calls.callbacks.given_up == 0


@run
async def test_many_outcomes_are_reported_together(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await prepared(client)
        await client.publish("jobs", ["x"] * 5_000, to(receiver))
        await (await client.pull("jobs", "workers", 5_000)).ack()
        await until(lambda: len(outcomes(receiver)) == 10_000)
        assert set(map(tuple, fates(receiver).values())) == {("delivered", "settled")}
        assert len(receiver.calls) < 30


@run
async def test_a_callback_to_this_machine_is_refused_unless_allowed(tmp_path):
    async with Receiver() as receiver, serving(tmp_path, allow_private=False) as (_, client):
        await client.create_topic("jobs")
        for url in (receiver.url, "http://a b", "ftp://a", "http://[::1/", "http://u:p@a/"):
            with pytest.raises(wherry.InvalidInput, match="callback"):
                await client.publish("jobs", ["a"], wherry.PublishOptions(callback=url))
        assert (await client.stats("jobs")).messages == 0
