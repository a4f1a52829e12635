"""What the frameworks run on: one broker for all tests of a worker. Each test has queues of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import programs
from tests.frameworks.brokers import Elsewhere, Node
from tests.frameworks.celery_apps import CeleryApp
from tests.frameworks.dramatiq_apps import DramatiqApp
from tests.frameworks.programs import Caller
from tests.ports import free_port

collect_ignore = []
if "AMQP_URL" in os.environ:
    collect_ignore.append("test_broker_killed.py")  # a server that is not ours is not ours to kill
    if "AMQP_API_URL" not in os.environ:
        collect_ignore.append("test_management.py")

FASTSTREAM_NAMES = """
import asyncio
from faststream import AckPolicy
from faststream.rabbit import Channel, ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue
from faststream_names import *
"""
"""What one would import at a prompt."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory) -> Iterator[Node | Elsewhere]:
    """Yield the broker under test."""
    if "AMQP_URL" in os.environ:
        yield Elsewhere(os.environ["AMQP_URL"], os.environ.get("AMQP_API_URL", ""))
        return
    node = Node(tmp_path_factory.mktemp("node"))
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="session")
def amqp_url(broker) -> str:
    """Return the URL where the broker listens."""
    return str(broker.url)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Node]:
    """Yield a node of the test's own, to be killed."""
    node = Node(tmp_path, amqp_port=free_port())
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def unique() -> str:
    """Return a name that no other test has."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def celery(amqp_url, tmp_path) -> Iterator[CeleryApp]:
    """Yield a Celery application without workers yet."""
    with CeleryApp(amqp_url, tmp_path) as made:
        yield made


@pytest.fixture
def faststream(amqp_url, tmp_path, unique) -> Iterator[Caller]:
    """Yield a Python with FastStream, where `broker` is connected and `name` is the test's own."""
    caller = Caller(programs("faststream") / "python", tmp_path / "log", {"AMQP_URL": amqp_url, "NAME": unique})
    try:
        caller.run(FASTSTREAM_NAMES)
        yield caller
    finally:
        caller.close()


@pytest.fixture
def dramatiq(amqp_url, tmp_path) -> Iterator[DramatiqApp]:
    """Yield a Dramatiq application without workers yet."""
    with DramatiqApp(amqp_url, tmp_path) as made:
        yield made
