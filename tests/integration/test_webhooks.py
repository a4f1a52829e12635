"""Webhook subscriptions against a real receiver: real sockets, a real node, nothing in between."""

import asyncio
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.receiver import Call, Receiver, until
from wherry.core.decide import leasing
from wherry.node.config import Config, ServerSection, StorageSection, WebhooksSection
from wherry.node.node import Node
from wherry.node.process import _loop_factory
from wherry.node.webhooks import lookups, pusher, sender

SECRET = "a secret of 26 characters."
AT_ONCE = wherry.Retry(attempts=3, first_ms=10, cap_ms=10, jitter=0.0)


@asynccontextmanager
async def serving(home: Path, **webhooks: Any) -> AsyncIterator[tuple[Node, wherry.Client]]:
    """A node that may call this machine, and a client of it."""
    config = Config(
        server=ServerSection(port=0, drain_s=1.0),
        storage=StorageSection(path=str(home)),
        webhooks=WebhooksSection(**{"allow_private": True, **webhooks}),
    )
    async with Node(config) as node, wherry.connect(node.url) as client:
        yield node, client


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run_it(**fixtures: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await test(**fixtures)

        with asyncio.Runner(loop_factory=_loop_factory()) as runner:  # the loop that nodes run on
            runner.run(main())

    return run_it


def resolve(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Names in `.hangs` are answered when this is set, or after a while; all others are this machine."""
    answer = threading.Event()

    def look_up(host: str, port: object, **options: object) -> list[Any]:
        if str(host).endswith(".hangs"):
            answer.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return answer


def hook(receiver: Receiver, **fields: Any) -> wherry.Webhook:
    return wherry.Webhook(url=receiver.url, secret=SECRET, **fields)


async def subscribed(client: wherry.Client, name: str, webhook: wherry.Webhook, **fields: Any) -> None:
    await client.create_topic("jobs")
    await client.subscribe("jobs", name, webhook=webhook, **{"retry": AT_ONCE, **fields})


async def lag(client: wherry.Client, name: str = "me") -> int:
    return next(each.lag for each in (await client.stats("jobs")).subscriptions if each.name == name)


async def drained(client: wherry.Client, name: str = "me") -> None:
    async def is_empty() -> bool:
        return await lag(client, name) == 0

    await until(is_empty)


async def removed(client: wherry.Client) -> tuple[wherry.Removal, ...]:
    async def removals() -> tuple[wherry.Removal, ...]:
        return (await client.stats("jobs")).removals

    return await until(removals)


@pytest.mark.rows("K8")
@run
async def test_messages_are_pushed_signed_and_acked(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "mé", hook(receiver, batch=10))
        await client.publish(
            "jobs", [wherry.Message(payload=b"one", key="k", headers={"a": "b"}), wherry.Message(payload=b"\xff\xfe")]
        )
        await until(lambda: len(receiver.calls) == 1)
        await drained(client, "mé")
        (call,) = receiver.calls
        assert call.path == "/hook?who=me"
        assert call.is_signed(SECRET)
        assert not call.is_signed("another secret, as long")
        first, second = call.messages
        assert (first["payload"], first["key"], first["headers"]) == ("one", "k", {"a": "b"})
        assert (second["payload_base64"], second["offset"], second["attempt"]) == ("//4=", 1, 1)
        lease = first["receipt"].partition(":")[0]
        places = [call.headers[f"wherry-{name}"] for name in ("topic", "subscription", "delivery")]
        assert places == ["jobs", "m%C3%A9", lease]


@pytest.mark.rows("K9")
@run
async def test_any_number_of_clients_and_each_gets_each_message(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await client.create_topic("jobs")
        names = [f"client-{number}" for number in range(100)]
        for name in names:
            await client.subscribe("jobs", name, webhook=hook(receiver, batch=2))
        for text in ("a", "b", "c"):
            await client.publish("jobs", [text])
        await until(lambda: len(receiver.payloads) >= 300)
        for name in names:
            await drained(client, name)
        got: dict[str, list[str]] = {}
        for call in receiver.calls:
            got.setdefault(call.headers["wherry-subscription"], []).extend(call.payloads)
        assert got == {name: ["a", "b", "c"] for name in names}


@run
async def test_the_secret_is_never_shown(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver))
        shown = (await client.subscription("jobs", "me")).webhook
        assert shown == hook(receiver).masked()
        with pytest.raises(wherry.InvalidInput, match="16 to 256 characters"):
            await client.change_subscription("jobs", "me", webhook=shown)
        with pytest.raises(wherry.AlreadyExists) as refused:
            await client.subscribe("jobs", "me", webhook=hook(receiver, batch=7))
        assert SECRET not in str(refused.value)


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
async def test_it_is_removed_also_when_what_it_was_sent_cannot_be_settled(tmp_path, monkeypatch):
    async with Receiver(lambda call: 410) as receiver, serving(tmp_path) as (_, client):
        keep = pusher.Pusher._settle

        async def too_late(self, delivery, verdict):
            delivery.take_back()  # its lease is over
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
async def test_not_now_is_no_failed_attempt_and_is_waited_out(tmp_path, status):
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
async def test_what_never_reached_the_client_is_no_failed_attempt(tmp_path):
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
async def test_a_client_that_takes_messages_and_says_nothing_is_down_and_they_have_failed(tmp_path):
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
        return b"" if down else 200  # it hangs up without an answer

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


@run
async def test_a_restart_goes_on_where_it_was(tmp_path):
    async with Receiver(lambda call: 503) as receiver:
        async with serving(tmp_path) as (_, client):
            await subscribed(client, "me", hook(receiver), retry=wherry.Retry(first_ms=300, cap_ms=300))
            await client.publish("jobs", ["a"])
            await until(lambda: len(receiver.calls) == 1)
        receiver.answer = lambda call: 200
        async with serving(tmp_path) as (_, client):
            await drained(client)
            await client.publish("jobs", ["b"])
            await drained(client)
    assert receiver.payloads == ["a", "a", "b"]
    assert receiver.calls[1].is_signed(SECRET)


@run
async def test_calls_under_way_end_before_the_node_does(tmp_path):
    async def slowly(call: Call) -> int:
        await asyncio.sleep(0.3)
        return 200

    async with Receiver(slowly) as receiver:
        async with serving(tmp_path) as (_, client):
            await subscribed(client, "me", hook(receiver))
            await client.publish("jobs", ["a"])
            await until(lambda: receiver.calls)
        async with serving(tmp_path) as (_, client):
            assert await lag(client) == 0
        assert len(receiver.calls) == 1


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
        assert len(slow.calls) == 1  # all of them are one host, and that has its share


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
async def test_who_cannot_be_looked_up_for_want_of_a_thread_is_not_down(tmp_path, monkeypatch, caplog):
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
            webhook = wherry.Webhook(url=url, secret=SECRET, remove_after=1, timeout_ms=100)
            await client.subscribe("jobs", name, webhook=webhook, acks=acks, start="latest")
        await client.publish("jobs", ["b"])
        await until(lambda: node.calls.sender.outcomes["push", "not-tried"] >= 4)
        assert "a call has to wait" in caplog.text
        answer.set()
        await until(lambda: receiver.payloads == ["b", "b"])
        assert (await client.stats("jobs")).removals == ()
        assert [call.messages[0]["attempt"] for call in receiver.calls] == [1, 1]


@run
async def test_the_consumer_of_a_webhook_is_not_for_others_to_send_away(tmp_path):
    async with Receiver() as receiver, serving(tmp_path) as (node, client):
        await subscribed(client, "me", hook(receiver))
        state = node.broker.shard.state.subscription("jobs", "me")
        (name,) = await until(lambda: list(state.consumers))
        url = f"{node.url}/v1/topics/jobs/subscriptions/me/consumers/{name}"
        request = urllib.request.Request(url, method="DELETE")
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=10)
        with refused.value as problem:
            assert b"pushes to a webhook" in problem.read()
        await client.publish("jobs", ["a"])
        await drained(client)
        assert receiver.payloads == ["a"]


@run
async def test_a_pusher_that_lost_its_place_comes_back_and_says_so(tmp_path, caplog):
    async with Receiver() as receiver, serving(tmp_path) as (node, client):
        await subscribed(client, "me", hook(receiver))
        shard = node.broker.shard
        state = shard.state.subscription("jobs", "me")
        (name,) = await until(lambda: list(state.consumers))
        leasing.leave(shard.state, state, name)
        for number in range(2):
            await client.publish("jobs", [str(number)])
            await drained(client)
        assert receiver.payloads == ["0", "1"]
        assert "joins again" in caplog.text
        assert name not in state.consumers
        await client.unsubscribe("jobs", "me")
        await until(lambda: len(node.calls.pushers) == 0)


@run
async def test_calls_and_removals_are_counted(tmp_path):
    answers = [200, 404, 410]
    async with Receiver(lambda call: answers.pop(0)) as receiver, serving(tmp_path) as (node, client):
        async with Receiver() as gone:
            pass
        await subscribed(client, "me", hook(receiver))
        await subscribed(client, "down", hook(gone, remove_after=1))
        await client.publish("jobs", ["a", "b"])
        await until(lambda: sum(node.calls.pushers.removals.values()) == 2)
        answer = await asyncio.to_thread(urllib.request.urlopen, f"{node.url}/metrics", timeout=10)
        with answer:
            lines = answer.read().decode().splitlines()
    for outcome in ("2xx 1.0", "4xx 2.0", "5xx 0.0", "unreached 1.0"):
        label, count = outcome.split()
        assert f'wherry_webhook_calls_total{{kind="push",outcome="{label}"}} {count}' in lines
    assert 'wherry_webhook_calls_total{kind="callback",outcome="unreached"} 0.0' in lines
    assert 'wherry_webhook_removals_total{why="down"} 1.0' in lines
    assert 'wherry_webhook_removals_total{why="gone"} 1.0' in lines


@run
async def test_a_webhook_may_change_and_go(tmp_path):
    async with Receiver() as old, Receiver() as new, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(old))
        await client.publish("jobs", ["a"])
        await drained(client)
        await client.change_subscription("jobs", "me", webhook=hook(new))
        await client.publish("jobs", ["b"])
        await drained(client)
        await client.change_subscription("jobs", "me", webhook=None)
        await client.publish("jobs", ["c"])
        batch = await client.pull("jobs", "me", wait_ms=1_000)
        assert (old.payloads, new.payloads, batch.payloads()) == (["a"], ["b"], [b"c"])
        await client.unsubscribe("jobs", "me")


@run
async def test_many_at_a_time_and_connections_are_kept(tmp_path):
    busy = most = 0

    async def answer(call: Call) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.01)
        busy -= 1
        return 200

    async with Receiver(answer) as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver, batch=10, in_flight=4))
        for number in range(40):
            await client.publish("jobs", [f"{number}-{each}" for each in range(10)])
        await drained(client)
        assert len(receiver.payloads) == len(set(receiver.payloads)) == 400
        assert max(len(call.messages) for call in receiver.calls) == 10
        assert 1 < most <= 4
        assert receiver.connections <= 4


@run
async def test_without_acks_a_message_is_pushed_once_whatever_comes_of_it(tmp_path):
    async with Receiver(lambda call: 400) as receiver, serving(tmp_path) as (_, client):
        await subscribed(client, "me", hook(receiver), acks=False)
        await client.publish("jobs", ["a", "b"])
        await until(lambda: len(receiver.calls) == 2)
        assert await lag(client) == 0


@run
async def test_this_machine_is_no_target_unless_allowed(tmp_path):
    async with Receiver() as receiver, serving(tmp_path, allow_private=False) as (_, client):
        await client.create_topic("jobs")
        for host in ("127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]"):
            webhook = wherry.Webhook(url=f"http://{host}:{receiver.port}/", secret=SECRET)
            with pytest.raises(wherry.InvalidInput, match=r"webhook\.url"):
                await client.subscribe("jobs", "me", webhook=webhook)
    async with Receiver() as receiver, serving(tmp_path, allow_private=False, allow=("127.0.0.0/8",)) as (_, client):
        await subscribed(client, "me", hook(receiver))
        await client.publish("jobs", ["a"])
        await drained(client)


@run
async def test_a_name_of_this_machine_is_refused_when_it_is_called(tmp_path):
    """`0x7f.1` is a name to us and 127.0.0.1 to the system: what counts is the address in the end."""
    async with Receiver() as receiver, serving(tmp_path, allow_private=False) as (_, client):
        webhook = wherry.Webhook(url=f"http://0x7f.1:{receiver.port}/", secret=SECRET, remove_after=2)
        await subscribed(client, "me", webhook)
        await client.publish("jobs", ["a"])
        (removal,) = await removed(client)
        assert "loopback" in removal.why
        assert receiver.connections == 0
