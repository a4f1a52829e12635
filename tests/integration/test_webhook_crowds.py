"""Webhooks of many clients, some slow, some dead: no client delays another."""

import asyncio

import pytest

import wherry
from tests.integration.hooks import SECRET, drained, hook, resolve, run, serving, subscribed
from tests.integration.receiver import Call, Receiver, until
from wherry.node.webhooks import lookups, pusher, sender


@run
async def test_slow_and_dead_clients_do_not_delay_another(tmp_path):
    async def never(call: Call) -> int:
        await asyncio.sleep(30)
        return 200

    async with Receiver(never) as slow, Receiver() as quick, serving(tmp_path, calls=4) as (_, client):
        await client.create_topic("jobs")
        await subscribed(client, "quick", hook(quick))
        await client.publish("jobs", ["a"])
        await drained(client, "quick")
        for number in range(20):
            await client.subscribe("jobs", f"slow-{number}", webhook=hook(slow, timeout_ms=60_000, in_flight=16))
        await client.publish("jobs", ["b"])
        await until(lambda: len(slow.calls) == 1)
        began = asyncio.get_running_loop().time()
        for number in range(20):
            await client.publish("jobs", [str(number)])
            await drained(client, "quick")
        assert asyncio.get_running_loop().time() - began < 2
        assert len(slow.calls) == 1  # all of the slow ones are one host, which has one share


@pytest.mark.parametrize("hosts", [1, 40])
@run
async def test_clients_that_hang_delay_no_new_one(tmp_path, monkeypatch, hosts):
    resolve(monkeypatch)

    async def never(call: Call) -> int:
        await asyncio.sleep(60)
        return 200

    async with Receiver(never) as slow, Receiver() as quick, serving(tmp_path) as (_, client):
        await client.create_topic("jobs")
        for number in range(40):
            url = f"http://h{number % hosts}.example:{slow.port}/{number}"
            webhook = wherry.Webhook(url=url, secret=SECRET, timeout_ms=60_000, remove_after=1)
            await client.subscribe("jobs", f"slow-{number}", webhook=webhook)
        await client.publish("jobs", ["a"])
        await until(lambda: len(slow.calls) >= min(16, 4 * hosts))
        began = asyncio.get_running_loop().time()
        await client.subscribe("jobs", "new", webhook=hook(quick), start="latest")
        await client.publish("jobs", ["b"])
        await until(lambda: quick.payloads == ["b"], 5.0)
        assert asyncio.get_running_loop().time() - began < 4
        assert (await client.stats("jobs")).removals == ()


@run
async def test_a_call_that_was_broken_off_for_another_is_made_again_and_has_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "TRIAL_S", 0.05)

    async def slowly(call: Call) -> int:
        await asyncio.sleep(0.3)
        return 200

    async with Receiver(slowly) as slow, Receiver() as quick, serving(tmp_path, calls=4) as (node, client):
        await subscribed(client, "slow", hook(slow))
        await client.publish("jobs", ["a"])
        await until(lambda: slow.calls)
        await client.subscribe("jobs", "quick", webhook=hook(quick), start="latest")
        await client.publish("jobs", ["b"])
        await until(lambda: quick.payloads == ["b"], 2.0)
        await drained(client, "slow")
        assert slow.payloads == ["a", "a", "b"]
        first, again, _ = slow.calls
        assert first.headers["wherry-delivery"] == again.headers["wherry-delivery"]
        assert node.calls.sender.outcomes["push", "broken-off"] == 1
        counters = next(each for each in (await client.stats("jobs")).subscriptions if each.name == "slow").counters
        assert "failed" not in counters


@run
async def test_without_acks_a_call_that_was_broken_off_is_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "TRIAL_S", 0.05)

    async def slowly(call: Call) -> int:
        await asyncio.sleep(0.2)
        return 200

    async with Receiver(slowly) as slow, Receiver() as quick, serving(tmp_path, calls=4) as (_, client):
        await subscribed(client, "slow", hook(slow), acks=False)
        await client.publish("jobs", ["a"])
        await until(lambda: slow.calls)
        await client.subscribe("jobs", "quick", webhook=hook(quick), start="latest")
        await client.publish("jobs", ["b"])
        await until(lambda: quick.payloads == ["b"], 2.0)
        await until(lambda: slow.payloads == ["a", "b"])


@run
async def test_names_that_never_answer_take_nothing_from_those_that_do(tmp_path, monkeypatch):
    resolve(monkeypatch)
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await client.create_topic("jobs")
        for number in range(40):
            webhook = wherry.Webhook(url=f"http://n{number}.hangs/", secret=SECRET)
            await client.subscribe("jobs", f"hangs-{number}", webhook=webhook)
        await client.publish("jobs", ["a"])
        await asyncio.sleep(0.2)
        webhook = wherry.Webhook(url=f"http://well.example:{receiver.port}/", secret=SECRET, remove_after=1)
        await client.subscribe("jobs", "well", webhook=webhook, start="latest")
        await client.publish("jobs", ["b"])
        await until(lambda: receiver.payloads == ["b"], 5.0)
        await drained(client, "well")
        assert "well" in [each.name for each in (await client.stats("jobs")).subscriptions]


@run
async def test_a_host_that_cannot_be_looked_up_for_want_of_a_thread_is_not_down(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lookups, "PLACES", 1)
    monkeypatch.setattr(lookups, "LATE_MAX", 0)
    monkeypatch.setattr(lookups, "WAIT_S", 0.1)
    monkeypatch.setattr(pusher, "TROUBLE_S", 0.05)
    answer = resolve(monkeypatch)
    async with Receiver() as receiver, serving(tmp_path) as (node, client):
        hangs = wherry.Webhook(url="http://a.hangs/", secret=SECRET)
        await subscribed(client, "hangs", hangs)
        await client.publish("jobs", ["a"])
        await asyncio.sleep(0.1)
        for name, acks in (("well", True), ("once", False)):
            url = f"http://{name}.example:{receiver.port}/"
            webhook = wherry.Webhook(url=url, secret=SECRET, remove_after=1, timeout_ms=10_000)
            await client.subscribe("jobs", name, webhook=webhook, acks=acks, start="latest")
        await client.publish("jobs", ["b"])
        await until(lambda: node.calls.sender.outcomes["push", "not-tried"] >= 4)
        assert "a call has to wait" in caplog.text
        answer.set()
        await until(lambda: receiver.payloads == ["b", "b"])
        assert (await client.stats("jobs")).removals == ()
        assert [call.messages[0]["attempt"] for call in receiver.calls] == [1, 1]
