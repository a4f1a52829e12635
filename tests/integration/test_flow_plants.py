"""Plants in what the wires do with messages: order, limits, acks, flags, transactions, heart-beats.

Each check holds on a node as it is, over real sockets, and fails with its plant. Answers that come before the disk, and
tokens of other holders, are planted in `test_wire_plants`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.integration.flow_amqp import (
    all_good,
    any_channel,
    behind,
    check_amqp_beat,
    check_amqp_commit,
    check_channels,
    check_death,
    check_exclusive,
    check_multiple,
    check_prefetch,
    check_refusal,
    check_requeue,
    check_return,
    no_amqp_beat,
    no_reason,
    not_alone,
    off_by_one,
    one_too_many,
    swallowed,
)
from tests.integration.flow_native import (
    a_bad_end,
    always_first,
    check_native_again,
    check_native_beat,
    check_native_confirm,
    check_native_credit,
    check_native_goodbye,
    check_native_range,
    longer_ranges,
    next_offset,
    no_native_beat,
    one_more_credit,
)
from tests.integration.flow_shared import half, unmarked
from tests.integration.flow_stomp import (
    another_subscription,
    check_stomp_ack,
    check_stomp_again,
    check_stomp_beat,
    check_stomp_client,
    check_stomp_commit,
    check_stomp_prefetch,
    no_stomp_beat,
    one_behind,
    stomp_off_by_one,
)
from tests.integration.served import Served, served
from tests.integration.test_wire_plants import asked
from wherry.broker.calls.settle import Settler
from wherry.node.config import FlightSection
from wherry.sim.patch import patched
from wherry.wire.http.endpoints import consume

PATIENCE_S = 20.0
"""How long a check waits for what must come."""

PLANTED_S = 3.0
"""How long it waits where a plant keeps that from coming; a plant that was found late is found all the same."""

Check = Callable[[Served, str, float], None]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node"), flight=FlightSection(enabled=False)) as found:
        yield found


# ------------------------------------------------------------------------------------------------------------- HTTP


def pulled(node: Served, name: str, count: int) -> list[str]:
    """Publish so many to a topic and pull them; their receipts."""
    broker = node.node.broker
    node.run(broker.create_topic(name))
    node.run(broker.subscribe(name, "s"))
    node.run(broker.publish(name, [b"it"] * count))
    status, answer = asked(node, "POST", f"/v1/topics/{name}/subscriptions/s/pull", {"max": count})
    assert status == 200, answer
    return [each["receipt"] for each in answer["messages"]]


def check_http_ack(node: Served, name: str, patience_s: float) -> None:
    """Check that an ack settles every receipt of its body."""
    receipts = pulled(node, name, 2)
    assert asked(node, "POST", f"/v1/topics/{name}/subscriptions/s/ack", {"receipts": receipts})[0] == 204
    assert node.node.broker.stats(name).messages == 0, "an ack left a message out"


def check_http_delay(node: Served, name: str, patience_s: float) -> None:
    """Check that a nack with a delay keeps its message back."""
    body = {"receipts": pulled(node, name, 1), "delay_ms": 60_000}
    assert asked(node, "POST", f"/v1/topics/{name}/subscriptions/s/nack", body)[0] == 204
    assert node.node.broker.stats(name).subscriptions[0].ready == 0, "a nack forgot its delay"


def one_left_out() -> Any:
    def make(parts_of: Any) -> Any:
        return lambda call: [(token, offsets[:-1]) for token, offsets in parts_of(call)]

    return patched(consume, "parts_of", make)


def at_once() -> Any:
    return patched(
        Settler, "nack", lambda real: lambda self, parts, delay, *more, **named: real(self, parts, 0, *more, **named)
    )


# --------------------------------------------------------------------------------------------------------- together


class Planted(NamedTuple):
    """What is checked, a plant, and the message of the check that fails then."""

    check: Check
    plant: Callable[[], Any]
    message: str


PLANTS = {
    "amqp: a requeue loses its place": Planted(check_requeue, behind, "lost its place"),
    "amqp: the redelivered flag is lost": Planted(check_requeue, unmarked, "not marked as redelivered"),
    "amqp: a prefetch off by one": Planted(check_prefetch, off_by_one, "more was delivered"),
    "amqp: an ack across channels": Planted(check_channels, any_channel, "of another channel"),
    "amqp: a nack takes one too many": Planted(check_multiple, one_too_many, "one too many"),
    "amqp: an exclusive consumer is not": Planted(check_exclusive, not_alone, "not alone"),
    "amqp: a transaction publishes half": Planted(check_amqp_commit, half, "published half"),
    "amqp: a dead letter without its reason": Planted(check_death, no_reason, "without its reason"),
    "amqp: a refused publish is confirmed": Planted(check_refusal, all_good, "was confirmed"),
    "amqp: nothing comes back": Planted(check_return, swallowed, "did not come back"),
    "amqp: a lost heart-beat": Planted(check_amqp_beat, no_amqp_beat, "no heart-beat"),
    "stomp: the redelivered flag is lost": Planted(check_stomp_again, unmarked, "not marked as redelivered"),
    "stomp: a prefetch off by one": Planted(check_stomp_prefetch, stomp_off_by_one, "more was sent"),
    "stomp: an ack for another subscription": Planted(check_stomp_ack, another_subscription, "another subscription"),
    "stomp: an ack takes one too many": Planted(check_stomp_client, one_behind, "one too many"),
    "stomp: a transaction publishes half": Planted(check_stomp_commit, half, "published half"),
    "stomp: a lost heart-beat": Planted(check_stomp_beat, no_stomp_beat, "no heart-beat"),
    "native: one credit more": Planted(check_native_credit, one_more_credit, "more was pushed"),
    "native: a range that is too long": Planted(check_native_range, longer_ranges, "one too many"),
    "native: a confirm with another offset": Planted(check_native_confirm, next_offset, "stored elsewhere"),
    "native: the attempt is lost": Planted(check_native_again, always_first, "not marked as redelivered"),
    "native: a lost heartbeat": Planted(check_native_beat, no_native_beat, "no heartbeat"),
    "native: a goodbye counts an attempt": Planted(check_native_goodbye, a_bad_end, "an attempt was counted"),
    "http: an ack leaves a message out": Planted(check_http_ack, one_left_out, "left a message out"),
    "http: a nack forgets its delay": Planted(check_http_delay, at_once, "forgot its delay"),
}


def named(request: pytest.FixtureRequest) -> str:
    return re.sub("[^a-z]+", "-", request.node.name).strip("-")


@pytest.mark.parametrize("check", dict.fromkeys(each.check for each in PLANTS.values()), ids=lambda each: each.__name__)
def test_a_check_holds(check: Check, node: Served, request: pytest.FixtureRequest):
    check(node, named(request), PATIENCE_S)


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_is_noticed(name: str, node: Served, request: pytest.FixtureRequest):
    check, plant, message = PLANTS[name]
    with plant(), pytest.raises(AssertionError, match=message):
        check(node, named(request), PLANTED_S)
