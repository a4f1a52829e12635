"""Webhooks whose client fails: which messages come again, which become dead letters, and which webhook is removed."""

import asyncio
import logging
from itertools import pairwise

import pytest

import wherry
from tests.integration.hooks import SECRET, drained, hook, removed, run, serving, subscribed
from tests.integration.receiver import Call, Receiver, until
from wherry.node.webhooks import pusher


@run
async def test_what_fails_comes_again_by_the_retry_policy_and_then_dies_with_its_reason(tmp_path):
    async with Receiver(lambda call: 418) as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver))
        await client.publish("jobs", ["poison"])
        await until(lambda: len(receiver.calls) == 3)
        await drained(client)
        (dead,) = (await client.dead_letters("jobs")).to_pylist()
        assert (dead["reason"], dead["attempts"]) == ("3 failed deliveries", 3)
        assert dead["error"] == f"418 from 127.0.0.1:{receiver.port}"
        assert [call.messages[0]["attempt"] for call in receiver.calls] == [1, 2, 3]
        assert (await client.stats("jobs")).removals == ()


@run
async def test_redirects_are_not_followed(tmp_path):
    async with Receiver() as other:
        answer = f"HTTP/1.1 307 X\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n".encode()
        async with Receiver(lambda call: answer) as receiver, serving(tmp_path) as (_, client):
            await subscribed(client, "me", hook(receiver))
            await client.publish("jobs", ["x"])
            await until(lambda: len(receiver.calls) == 3)
            await drained(client)
            assert other.calls == []


@pytest.mark.rows("K12")
@run
async def test_a_client_that_cannot_be_reached_is_removed_and_its_removal_is_seen(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    async with serving(tmp_path) as (_, client):
        async with Receiver() as gone:
            pass
        async with Receiver() as receiver:
            await subscribed(client, "dead", hook(gone, remove_after=4), retry=wherry.Retry(first_ms=5, cap_ms=5))
            await subscribed(client, "well", hook(receiver))
            await client.publish("jobs", ["a"])
            await until(lambda: "removed" in caplog.text)
            await client.publish("jobs", ["b"])
            await until(lambda: receiver.payloads == ["a", "b"])
        stats = await client.stats("jobs")
        assert [each.name for each in stats.subscriptions] == ["well"]
        assert stats.counters["cut_off"] == 1
        (removal,) = stats.removals
        assert removal.subscription == "dead"
        assert f"127.0.0.1:{gone.port} cannot be reached" in removal.why
        assert "4 calls in a row" in removal.why
        assert "/hook" not in removal.why + caplog.text
        assert SECRET not in caplog.text
    async with serving(tmp_path) as (node, client):
        assert (await client.stats("jobs")).removals == (removal,)
        await node.broker.checkpoint()
    async with serving(tmp_path) as (_, client):
        assert (await client.stats("jobs")).removals == (removal,)


@run
async def test_gone_means_removed_at_once(tmp_path):
    async with Receiver(lambda call: 410) as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver))
        await client.publish("jobs", ["a"])
        await removed(client)
        assert len(receiver.calls) == 1
        assert (await client.stats("jobs")).subscriptions == ()


@run
async def test_a_webhook_is_removed_also_when_its_messages_cannot_be_settled(tmp_path, monkeypatch):
    async with Receiver(lambda call: 410) as receiver, serving(tmp_path) as (_, client):
        keep = pusher.Pusher._settle

        async def too_late(self, delivery, verdict):
            delivery.take_back()  # the lease of the delivery is over
            await keep(self, delivery, verdict)

        monkeypatch.setattr(pusher.Pusher, "_settle", too_late)
        await subscribed(client, "me", hook(receiver))
        await client.publish("jobs", ["a"])
        await removed(client)
        assert len(receiver.calls) == 1


@pytest.mark.rows("K12", "G18")
@pytest.mark.parametrize("status", [500, 503, 404])
@run
async def test_a_message_that_the_client_cannot_handle_dies_and_the_client_stays(tmp_path, status):
    async with (
        Receiver(lambda call: status if call.payloads[0] == "poison" else 200) as receiver,
        serving(tmp_path) as (_, client),
    ):
        await subscribed(client, "me", hook(receiver, remove_after=1))
        await client.publish("jobs", ["poison"])
        await drained(client)
        (dead,) = (await client.dead_letters("jobs")).to_pylist()
        assert (dead["attempts"], dead["error"]) == (3, f"{status} from 127.0.0.1:{receiver.port}")
        await client.publish("jobs", ["poison", "a", "b"])
        await until(lambda: {"a", "b"} <= set(receiver.payloads))
        assert (await client.stats("jobs")).removals == ()


@pytest.mark.parametrize("status", [429, 503])
@run
async def test_a_busy_answer_is_no_failed_attempt_and_its_time_is_waited_out(tmp_path, status):
    came: list[float] = []

    def answer(call: Call) -> int | bytes:
        came.append(asyncio.get_running_loop().time())
        if len(came) > 4:
            return 200
        wait = b"1" if len(came) < 4 else b"Thu, 01 Jan 1970 00:00:00 GMT"  # which is over
        return b"HTTP/1.1 %d X\r\nRetry-After: %b\r\nContent-Length: 0\r\n\r\n" % (status, wait)

    async with Receiver(answer) as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver, remove_after=1))
        await client.publish("jobs", ["a"])
        await drained(client)
        attempts = [call.messages[0]["attempt"] for call in receiver.calls]
        assert attempts == ([1] * 5 if status == 429 else [1] * 4 + [2]), "a date that is over asks for nothing"
        assert all(after - before >= 1 for before, after in pairwise(came[:4]))


@run
async def test_a_call_that_never_reached_the_client_is_no_failed_attempt(tmp_path):
    async with Receiver() as gone:
        pass
    async with serving(tmp_path) as (node, client):
        await subscribed(client, "me", hook(gone, remove_after=1_000))
        await client.publish("jobs", ["a"])
        await until(lambda: node.calls.sender.outcomes["push", "unreached"] > 5)
        async with Receiver(port=gone.port) as receiver:
            await drained(client)
            assert [call.messages[0]["attempt"] for call in receiver.calls] == [1]


@pytest.mark.rows("K12", "G18")
@run
async def test_a_client_that_takes_messages_and_does_not_answer_is_down_and_they_have_failed(tmp_path):
    async with Receiver(lambda call: b"") as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver, remove_after=4))
        await client.publish("jobs", ["a"])
        await until(lambda: len(receiver.calls) == 3)
        await drained(client)
        (dead,) = (await client.dead_letters("jobs")).to_pylist()
        assert (dead["attempts"], dead["error"].partition(" ")[2]) == (3, "closed the connection without an answer")
        await client.publish("jobs", ["b"])
        (removal,) = await removed(client)
        assert "4 calls in a row had no answer" in removal.why
        (left,) = (await client.dead_letters("jobs")).to_pylist()
        assert (left["subscription"], left["error"]) == ("", dead["error"]), "it outlives its subscription"


@run
async def test_a_client_that_comes_back_in_time_stays(tmp_path):
    down = [b"", b"", b""]
    async with Receiver(lambda call: down.pop() if down else 200) as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver, remove_after=4), retry=wherry.Retry(first_ms=5, cap_ms=5))
        await client.publish("jobs", ["a", "b", "c"])
        await drained(client)
        assert sorted(set(receiver.payloads)) == ["a", "b", "c"]
        assert len(receiver.payloads) == 6
        assert (await client.stats("jobs")).removals == ()


@run
async def test_calls_under_way_together_count_as_one_failure(tmp_path):
    down = True

    async def answer(call: Call) -> int | bytes:
        if call.payloads[0] == "first":
            return 200
        await asyncio.sleep(0.1)
        return b"" if down else 200  # the receiver hangs up without an answer

    async with Receiver(answer) as receiver, serving(tmp_path) as (_, client):
        webhook = hook(receiver, in_flight=16, remove_after=3)
        await subscribed(client, "me", webhook, retry=wherry.Retry(first_ms=5, cap_ms=5))
        await client.publish("jobs", ["first"])
        await drained(client)
        await client.publish("jobs", [str(number) for number in range(16)])
        await until(lambda: len(receiver.calls) == 17)
        await asyncio.sleep(0.15)
        down = False
        await drained(client)
        assert (await client.stats("jobs")).removals == ()
