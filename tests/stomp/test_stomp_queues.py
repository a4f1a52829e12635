"""The queues that subscriptions have for themselves."""

from __future__ import annotations

import pytest


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("more", [{}, {"x_queue_name": "some", "exclusive": "true"}])
def test_a_queue_of_its_own_ends_with_the_subscription_whatever_the_headers(client, stomp_node, name, more):
    before = set(stomp_node.broker.shard.state.topics)
    for _ in range(3):
        client.done("SUBSCRIBE", destination=f"/topic/{name}", id="1", auto_delete="false", **more)
        client.done("UNSUBSCRIBE", id="1")
    assert set(stomp_node.broker.shard.state.topics) <= before


@pytest.mark.parametrize("more", [{}, {"durable": "true", "auto_delete": "false"}])
@pytest.mark.parametrize("queue", ["", "x" * 256])
def test_a_queue_has_a_name(client, name, more, queue):
    client.send("SUBSCRIBE", destination=f"/topic/{name}", id="1", x_queue_name=queue, **more)
    found = client.error()
    assert found.headers["message"] == "Invalid header"
    assert "x-queue-name" in found.body.decode()
