"""What becomes of a message that no consumer takes: time to live, full queues, dead letters, limits of delivery."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from tests.amqp.clients.port import Channel, Message
from tests.amqp.scenarios.queues import until_gone
from tests.amqp.scenarios.registry import Scene, scenario

LAST_DEATH = {"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"}
"""RabbitMQ writes these since 4.0."""


def morgue(scene: Scene, channel: Channel, **more: Any) -> tuple[str, str, str]:
    """Make a queue whose dead letters go to an exchange with a second queue; return queue, exchange, second queue."""
    exchange = scene.exchange(channel, "fanout", "dlx")
    dead = scene.queue(channel, "dead", exclusive=True)
    channel.bind(dead, exchange)
    arguments = {"x-dead-letter-exchange": exchange, **more}
    return scene.queue(channel, "living", durable=True, arguments=arguments), exchange, dead


def is_instant(value: Any) -> bool:
    """Return whether a value is a time: clients give a timestamp as a number of seconds, or as an instant."""
    seconds: float = value.timestamp() if isinstance(value, datetime) else value
    return abs(seconds - time.time()) < 100_000


def only(channel: Channel, queue: str) -> Message:
    """Return the one message in a queue, as soon as it is there."""
    channel.until_count(queue, 1)
    message = channel.get(queue, no_ack=True)
    assert message is not None
    return message


# ------------------------------------------------------------------------------------------------------ time to live


@scenario()
def a_message_lives_as_long_as_its_queue_allows(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-message-ttl": 200})
    for _ in range(3):
        channel.publish("", queue, b"m")
    channel.until_count(queue, 0)
    assert channel.get(queue) is None


@scenario()
def a_message_lives_as_long_as_its_own_expiration(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    channel.publish("", queue, b"short", expiration="200")
    channel.publish("", queue, b"long", expiration="600000")
    channel.publish("", queue, b"for ever")
    channel.until_count(queue, 2)
    assert [message.body for message in channel.drain(queue)] == [b"long", b"for ever"]


@scenario()
def the_shorter_life_counts(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    strict = scene.queue(channel, "strict", exclusive=True, arguments={"x-message-ttl": 200})
    mild = scene.queue(channel, "mild", exclusive=True, arguments={"x-message-ttl": 600_000})
    channel.publish("", strict, b"m", expiration="600000")
    channel.publish("", mild, b"m", expiration="200")
    for queue in (strict, mild):
        channel.until_count(queue, 0)


@scenario()
def no_time_to_live_means_now_or_never(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    channel.publish("", queue, b"never", expiration="0")
    assert channel.get(queue) is None
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"now", expiration="0")
    assert channel.next().body == b"now"


@scenario()
def what_was_handed_out_does_not_expire(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel, exclusive=True, arguments={"x-message-ttl": 300})
    channel.consume(queue)
    channel.publish("", queue, b"m")
    message = channel.next()
    connection.idle(0.6)
    channel.ack(message.tag)
    assert channel.count(queue) == 0


@scenario()
def an_expiration_stays_with_a_message_that_is_delivered(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", expiration="60000")
    assert channel.next().properties["expiration"] == "60000"


@scenario()
def an_unused_queue_expires(scene: Scene) -> None:
    connection = scene.connect()
    queue = scene.queue(connection.channel(), arguments={"x-expires": 300})
    connection.idle(0.6)
    until_gone(connection, queue, every_s=1)


@scenario()
def a_queue_in_use_does_not_expire(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel, arguments={"x-expires": 300})
    tag = channel.consume(queue, no_ack=True)
    connection.idle(1.0)
    assert channel.count(queue) == 0
    channel.cancel(tag)
    connection.idle(0.6)
    until_gone(connection, queue, every_s=1)


# ------------------------------------------------------------------------------------------------------- full queues


@scenario()
def a_full_queue_drops_the_oldest(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-length": 3})
    for number in range(6):
        assert channel.publish("", queue, str(number).encode())
    assert [message.body for message in channel.drain(queue)] == [b"3", b"4", b"5"]


@scenario()
def a_queue_is_full_by_bytes_too(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-length-bytes": 100_000})
    for number in range(6):
        channel.publish("", queue, str(number).encode() * 30_000)  # large beside properties, which count on Wherry
    assert [message.body[:1] for message in channel.drain(queue)] == [b"3", b"4", b"5"]


@scenario()
def only_what_is_ready_counts_for_the_length(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-length": 2})
    for number in range(2):
        channel.publish("", queue, str(number).encode())
    held = [channel.get(queue), channel.get(queue)]
    for number in range(2, 4):
        channel.publish("", queue, str(number).encode())
    assert all(held)
    assert [message.body for message in channel.drain(queue)] == [b"2", b"3"]


@scenario()
def what_a_full_queue_drops_is_a_dead_letter(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel, **{"x-max-length": 2})
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    message = only(channel, dead)
    assert message.body == b"0"
    assert message.headers["x-death"][0]["reason"] == "maxlen"
    assert channel.count(queue) == 2


@scenario()
def what_a_full_queue_rejects_may_be_a_dead_letter(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel, **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    assert channel.publish("", queue, b"0")
    assert not channel.publish("", queue, b"1")
    message = only(channel, dead)
    assert message.body == b"1"
    assert message.headers["x-death"][0]["reason"] == "maxlen"


@scenario()
def a_queue_of_no_length_holds_nothing(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-length": 0})
    for number in range(3):
        assert channel.publish("", queue, str(number).encode())
        assert channel.count(queue) == 0
    channel.consume(queue, no_ack=True)
    assert channel.publish("", queue, b"for any consumer")
    assert channel.next().body == b"for any consumer"


@scenario()
def what_a_queue_of_no_length_cannot_give_away_is_a_dead_letter(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel, **{"x-max-length": 0})
    assert channel.publish("", queue, b"m")
    message = only(channel, dead)
    assert (message.body, message.headers["x-death"][0]["reason"]) == (b"m", "maxlen")
    assert channel.count(queue) == 0


@scenario()
def a_queue_of_no_length_that_rejects_takes_nothing_at_all(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
    queue = scene.queue(channel, exclusive=True, arguments=arguments)
    assert not channel.publish("", queue, b"m")
    channel.consume(queue, no_ack=True)
    assert not channel.publish("", queue, b"m")


# ------------------------------------------------------------------------------------------------------ dead letters


@scenario()
def a_rejected_message_has_the_record_of_its_death(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, exchange, dead = morgue(scene, channel)
    channel.publish("", queue, b"m", headers={"mine": 1}, message_id="7", delivery_mode=2)
    channel.consume(queue)
    channel.reject(channel.next().tag, requeue=False)
    message = only(channel, dead)
    assert (message.body, message.exchange, message.key, message.redelivered) == (b"m", exchange, queue, False)
    assert (message.properties["message_id"], message.properties["delivery_mode"]) == ("7", 2)
    headers = {name: value for name, value in message.headers.items() if name not in LAST_DEATH}
    (death,) = headers.pop("x-death")
    assert headers == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": queue,
        "x-first-death-reason": "rejected",
    }
    assert is_instant(death.pop("time"))
    assert death == {"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}


@scenario()
def an_expired_message_has_the_record_of_its_death(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel)
    channel.publish("amq.direct", "nobody", b"lost")
    channel.bind(queue, "amq.direct", scene.name("key"))
    channel.publish("amq.direct", scene.name("key"), b"m", expiration="100")
    message = only(channel, dead)
    assert "expiration" not in message.properties
    assert message.headers["x-first-death-reason"] == "expired"
    (death,) = message.headers["x-death"]
    assert is_instant(death.pop("time"))
    assert death == {
        "count": 1,
        "reason": "expired",
        "queue": queue,
        "exchange": "amq.direct",
        "routing-keys": [scene.name("key")],
        "original-expiration": "100",
    }


@scenario()
def a_message_that_expired_with_its_queue_records_no_expiration(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel, **{"x-message-ttl": 100})
    channel.publish("", queue, b"m")
    (death,) = only(channel, dead).headers["x-death"]
    assert death["reason"] == "expired"
    assert "original-expiration" not in death


@scenario()
def a_nacked_message_is_a_dead_letter_and_a_requeued_one_is_not(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel)
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    taken = [channel.get(queue) for _ in range(3)]
    assert taken[0] is not None
    assert taken[2] is not None
    channel.nack(taken[0].tag, requeue=True)
    channel.nack(taken[2].tag, multiple=True, requeue=False)
    channel.until_count(dead, 2)
    assert [message.body for message in channel.drain(dead)] == [b"1", b"2"]
    assert [message.body for message in channel.drain(queue)] == [b"0"]


@scenario()
def a_dead_letter_may_get_another_key(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "direct", "dlx")
    dead = scene.queue(channel, "dead", exclusive=True)
    channel.bind(dead, exchange, "buried")
    arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "buried", "x-message-ttl": 50}
    queue = scene.queue(channel, "living", exclusive=True, arguments=arguments)
    channel.publish("", queue, b"m")
    message = only(channel, dead)
    assert (message.exchange, message.key) == (exchange, "buried")
    assert message.headers["x-death"][0]["routing-keys"] == [queue]


@scenario()
def dead_letters_are_published_to_the_default_exchange(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    dead = scene.queue(channel, "dead", exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = scene.queue(channel, "living", exclusive=True, arguments=arguments)
    channel.publish("", queue, b"m")
    message = channel.get(queue)
    assert message is not None
    channel.nack(message.tag, requeue=False)
    assert only(channel, dead).body == b"m"


@scenario()
def a_dead_letter_without_an_exchange_is_dropped(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-dead-letter-exchange": scene.name("missing")})
    channel.publish("", queue, b"m")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag, requeue=False)
    channel.until_count(queue, 0)


@scenario()
def deaths_are_counted_by_queue_and_reason(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    work, wait = scene.name("work"), scene.name("wait")
    channel.declare_queue(
        work, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}
    )
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 50}
    channel.declare_queue(wait, exclusive=True, arguments=arguments)
    channel.publish("", work, b"m")
    channel.consume(work)
    for _ in range(3):
        channel.reject(channel.next().tag, requeue=False)
    deaths = channel.next().headers["x-death"]
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [
        (wait, "expired", 3),
        (work, "rejected", 3),
    ]


@scenario()
def a_ring_of_dead_letters_without_a_reject_ends(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel(confirms=True)
    arguments = {"x-dead-letter-exchange": "", "x-message-ttl": 100}
    queue = scene.queue(channel, exclusive=True, arguments=arguments)
    channel.publish("", queue, b"m")
    connection.idle(0.4)
    channel.until_count(queue, 0)
    assert channel.is_quiet()
    assert channel.count(queue) == 0


@scenario()
def a_ring_of_rejects_continues(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-dead-letter-exchange": ""})
    channel.publish("", queue, b"m")
    channel.consume(queue)
    for turn in range(4):
        message = channel.next()
        assert [death["count"] for death in message.headers.get("x-death", [])] == ([turn] if turn else [])
        channel.reject(message.tag, requeue=False)


# -------------------------------------------------------------------------------------------------- limits of delivery


@scenario()
def a_quorum_queue_counts_deliveries(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, durable=True, arguments={"x-queue-type": "quorum"})
    channel.publish("", queue, b"m")
    channel.consume(queue)
    counts = []
    for _ in range(3):
        message = channel.next()
        counts.append(message.headers.get("x-delivery-count", 0))
        channel.nack(message.tag, requeue=True)
    assert counts == [0, 1, 2]


@scenario()
def a_message_over_the_delivery_limit_is_dropped(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    queue = scene.queue(channel, durable=True, arguments=arguments)
    channel.publish("", queue, b"m")
    channel.consume(queue)
    for _ in range(3):
        channel.nack(channel.next().tag, requeue=True)
    assert channel.is_quiet()
    assert channel.count(queue) == 0


@scenario()
def a_message_over_the_delivery_limit_is_a_dead_letter(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue, _, dead = morgue(scene, channel, **{"x-queue-type": "quorum", "x-delivery-limit": 1})
    channel.publish("", queue, b"m")
    channel.consume(queue)
    for _ in range(2):
        channel.nack(channel.next().tag, requeue=True)
    message = only(channel, dead)
    assert message.headers["x-first-death-reason"] == "delivery_limit"
    assert message.headers["x-death"][0]["reason"] == "delivery_limit"
