"""The figures of a broker in process."""

import asyncio

import numpy as np
import pytest

import wherry
from tests.behaviour.world import VirtualClock, bodies, in_loop, reader_of
from wherry.broker.metrics import figures
from wherry.broker.metrics.metrics import Histogram, Metrics
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.model.errors import LimitReached


async def opened() -> tuple[wherry.Broker, VirtualClock, Metrics]:
    clock = VirtualClock()
    broker = await start(MemoryEngine(), None, clock)
    await broker.create_topic("t")
    return broker, clock, Metrics(broker)


async def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    found = [s for family in await metrics.families() for s in family.samples if s.name == name]
    values = [sample.value for sample in found if sample.labels == labels]
    return values[0] if values else None


def test_a_value_on_a_bound_counts_up_to_it():
    one, all_at_once = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    values = [0.5, 1.0, 1.5, 2.0, 3.0]
    for each in values:
        one.observe(each)
    all_at_once.observe_all(np.array(values))
    assert one.counts == all_at_once.counts == [2, 2, 1]
    assert one.total == all_at_once.total == 8.0


@in_loop
async def test_nothing_is_measured_until_metrics_are_read():
    broker = await start(MemoryEngine(), None, VirtualClock())
    assert broker.shard.metrics is broker.shard.committer.metrics is None
    await broker.close()


@pytest.mark.rows("G24")
@in_loop
async def test_what_a_broker_does_is_counted():
    broker, clock, metrics = await opened()
    reader = await reader_of(broker, "t", retry=wherry.Retry(attempts=2, first_ms=0))
    await broker.publish("t", bodies(10))
    clock.advance(2_000)
    got = await reader.pull(4)
    await got.ack([0, 1])
    await got.nack([2])
    await got.dead_letter([3])
    here = {"topic": "t", "subscription": "readers"}
    expected = {"delivered": 4, "acked": 2, "failed": 1, "dead": 1}
    for what, count in expected.items():
        assert await value(metrics, f"wherry_messages_{what}_total", **here) == count, what
    assert await value(metrics, "wherry_messages_published_total", topic="t") == 10
    assert await value(metrics, "wherry_subscription_lag_messages", **here) == 7
    assert await value(metrics, "wherry_delivery_seconds_sum") == 8.0
    assert await value(metrics, "wherry_publish_seconds_count") == 1
    assert await value(metrics, "wherry_settle_seconds_count") == 3
    assert (await value(metrics, "wherry_journal_sync_seconds_count") or 0) >= 4
    await broker.close()


@in_loop
async def test_messages_of_several_publishes_are_each_of_their_age():
    broker, clock, metrics = await opened()
    reader = await reader_of(broker, "t")
    for _ in range(3):
        await broker.publish("t", bodies(2))
        clock.advance(1_000)
    await reader.pull()
    assert metrics.delivery.total == 2 * (1 + 2 + 3)
    assert sum(metrics.delivery.counts) == 6
    await broker.close()


@in_loop
async def test_refused_publishes_are_counted_by_topic_and_bound():
    broker, _, metrics = await opened()
    await broker.create_topic("small", messages_max=1)
    await broker.publish("small", b"fits")
    for topic in ("small", "small", "unheard of"):
        with pytest.raises((LimitReached, LookupError)):
            await broker.publish(topic, b"too many")
    assert await value(metrics, "wherry_publishes_refused_total", topic="small", code="limit-reached") == 2
    assert await value(metrics, "wherry_publishes_refused_total", topic="", code="not-found") == 1
    await broker.close()


@in_loop
async def test_names_beyond_the_bound_share_one_series(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "TOPICS_MAX", 2)
    monkeypatch.setattr(figures, "SUBSCRIPTIONS_MAX", 1)
    broker, clock, metrics = await opened()
    for name in ("u", "v", "w"):
        await broker.create_topic(name)
    for name in ("t", "u", "v", "w"):
        await broker.subscribe(name, "s")
        await broker.publish(name, bodies(3))
        clock.advance(1_000)
    families = {family.name: family for family in await metrics.families()}
    published = {s.labels["topic"]: s.value for s in families["wherry_messages_published"].samples}
    assert published == {"t": 3, "u": 3, figures.OTHERS: 6}
    lags = {tuple(s.labels.values()): s.value for s in families["wherry_subscription_lag_seconds"].samples}
    assert lags == {("t", "s"): 4.0, ("u", figures.OTHERS): 3.0, (figures.OTHERS, figures.OTHERS): 2.0}
    await broker.close()


@in_loop
async def test_what_is_gone_leaves_no_series():
    broker, _, metrics = await opened()
    reader = await reader_of(broker, "t")
    await broker.publish("t", b"m")
    await reader.pull()
    await broker.delete_topic("t")
    names = {s.name for family in await metrics.families() for s in family.samples if s.labels.get("topic") == "t"}
    assert names == set()
    assert not metrics.deliveries
    await broker.close()


@pytest.mark.rows("A20")
@in_loop
async def test_a_dead_letter_does_not_count_as_late():
    broker, clock, metrics = await opened()
    reader = await reader_of(broker, "t")
    await broker.publish("t", b"poison")
    await (await reader.pull()).dead_letter()
    clock.advance(3_600_000)
    await broker.publish("t", b"fresh")
    clock.advance(2_000)
    here = {"topic": "t", "subscription": "readers"}
    assert await value(metrics, "wherry_subscription_lag_messages", **here) == 1
    assert await value(metrics, "wherry_subscription_lag_seconds", **here) == 2.0
    await (await reader.pull()).ack()
    assert await value(metrics, "wherry_subscription_lag_seconds", **here) == 0.0
    await broker.close()


@in_loop
async def test_figures_are_there_when_the_journal_is_not():
    broker, _, metrics = await opened()
    broker.shard.committer.fail(wherry.StorageError("the disk is gone"))
    assert await value(metrics, "wherry_failed") == 1.0
    await broker.close()


@in_loop
async def test_both_text_formats_several_at_a_time():
    broker, _, metrics = await opened()
    texts = await asyncio.gather(*(metrics.text(openmetrics=n % 2 == 1) for n in range(4)))
    assert [text.endswith(b"# EOF\n") for text in texts] == [False, True, False, True]
    assert all(b'wherry_messages_published_total{topic="t"} 0.0' in text for text in texts)
    await broker.close()
