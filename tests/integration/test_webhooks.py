"""Webhook subscriptions against a real receiver: real sockets, a real node, nothing in between."""

import asyncio
import urllib.error
import urllib.request

import pytest

import wherry
from tests.integration.hooks import SECRET, drained, hook, lag, removed, run, serving, subscribed
from tests.integration.receiver import Call, Receiver, until
from wherry.core.decide import leasing


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
async def test_a_restart_continues_where_it_was(tmp_path):
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
async def test_a_pusher_that_lost_its_place_comes_back_and_logs_it(tmp_path, caplog):
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
async def test_a_webhook_may_be_replaced_and_removed(tmp_path):
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
async def test_addresses_of_this_machine_are_no_target_unless_allowed(tmp_path):
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
    """Call `0x7f.1`, a name to us and 127.0.0.1 to the system: what counts is the address in the end."""
    async with Receiver() as receiver, serving(tmp_path, allow_private=False) as (_, client):
        webhook = wherry.Webhook(url=f"http://0x7f.1:{receiver.port}/", secret=SECRET, remove_after=2)
        await subscribed(client, "me", webhook)
        await client.publish("jobs", ["a"])
        (removal,) = await removed(client)
        assert "loopback" in removal.why
        assert receiver.connections == 0
