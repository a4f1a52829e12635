"""Scenarios that only amqplib has words for; they are written in them, in `node/own.js`."""

from __future__ import annotations

from dataclasses import asdict

from tests.amqp.clients.amqplib_client import AmqpLib
from tests.amqp.scenarios.registry import Scene, scenario


def run(scene: Scene, name: str) -> None:
    """Run the one with this name over there."""
    assert isinstance(scene.client, AmqpLib)
    scene.client.servant.do("own", scenario=name, address=asdict(scene.address), name=scene.name("own"))


@scenario()
def options_by_name(scene: Scene) -> None:
    run(scene, "options_by_name")


@scenario()
def copies(scene: Scene) -> None:
    run(scene, "copies")


@scenario()
def everything_at_once(scene: Scene) -> None:
    run(scene, "everything_at_once")


@scenario()
def a_buffer_that_is_full_drains(scene: Scene) -> None:
    run(scene, "a_buffer_that_is_full_drains")


@scenario()
def a_typed_header(scene: Scene) -> None:
    run(scene, "a_typed_header")


@scenario()
def an_error_is_an_event(scene: Scene) -> None:
    run(scene, "an_error_is_an_event")


@scenario()
def with_callbacks(scene: Scene) -> None:
    run(scene, "with_callbacks")
