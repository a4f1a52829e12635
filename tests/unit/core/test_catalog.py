"""The catalog: names that go take what belongs to them along, and nothing else is looked at."""

from __future__ import annotations

from wherry.core.state.catalog import Catalog
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic


def catalog(topics: int, subscriptions: int) -> Catalog:
    made = Catalog()
    for topic in range(1, topics + 1):
        made.put_topic(topic, Topic(name=f"t{topic}"))
        for at in range(subscriptions):
            number = topics + topic * subscriptions + at
            made.put_subscription(number, topic, Subscription(topic=f"t{topic}", name=f"s{at}"))
    return made


def test_deleting_a_topic_deletes_its_subscriptions_and_touches_no_other():
    made = catalog(topics=4, subscriptions=3)
    before, expected = made.subscriptions, {key: sub for key, sub in made.subscriptions.items() if key[0] != 2}
    made.delete_topic(2, "t2")
    assert made.subscriptions is before  # not made anew: that would cost as much as there are in all
    assert list(made.subscriptions.items()) == list(expected.items())
    assert made.topics == {"t1": 1, "t3": 3, "t4": 4}


def test_subscriptions_that_were_deleted_before_their_topic_are_no_more_looked_for():
    made = catalog(topics=2, subscriptions=2)
    for name in ("s0", "s1"):
        made.delete_subscription(1, name)
    made.delete_topic(1, "t1")
    made.delete_subscription(2, "s0")
    made.delete_topic(2, "t2")
    assert (made.subscriptions, made.topics, made._names_of) == ({}, {}, {})


def test_bindings_that_are_added_and_removed_leave_nothing():
    made = catalog(topics=1, subscriptions=0)
    binding, other = Binding(topic="t1", match="a"), Binding(topic="t1", match="b")
    onward = Binding(route="r", match="c")
    for at in range(10):
        made.put_route(Route(name=f"r{at}", kind="direct"))
        for each in (binding, other, onward):
            made.bind(f"r{at}", each)
        made.unbind(f"r{at}", binding)
        assert (made.leading_to("t1"), made.leading_to(None)) == ([f"r{at}"], [f"r{at}"])
        made.unbind(f"r{at}", onward)
        if at % 2:
            made.unbind(f"r{at}", other)
        made.delete_route(f"r{at}")
    assert made._leading_to == {}


def test_deleting_a_topic_deletes_the_bindings_to_it():
    made = catalog(topics=2, subscriptions=0)
    bindings = tuple(Binding(topic=f"t{topic}", match="a") for topic in (1, 2))
    made.put_route(Route(name="r", kind="direct", bindings=bindings))
    made.delete_topic(1, "t1")
    assert made.routes["r"].bindings == bindings[1:]
    assert (made.leading_to("t1"), made.leading_to("t2")) == ([], ["r"])
