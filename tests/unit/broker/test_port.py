"""The port is declared apart from the broker: types prove that the broker has it, tests that its calls are alike."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from wherry.broker.broker import Broker
from wherry.broker.calls.consumer import Consumer, Delivery
from wherry.broker.calls.log import LogReader
from wherry.broker.calls.settle import Settler
from wherry.broker.port.consume import ConsumerPort, DeliveryPort, SettlerPort
from wherry.broker.port.inspect import CatalogView, LogReaderPort
from wherry.broker.port.port import BrokerPort
from wherry.core.state.catalog import Catalog

if TYPE_CHECKING:
    _broker: type[BrokerPort] = Broker
    _consumer: type[ConsumerPort] = Consumer
    _delivery: type[DeliveryPort] = Delivery
    _settler: type[SettlerPort] = Settler
    _reader: type[LogReaderPort] = LogReader
    _catalog: type[CatalogView] = Catalog


def declared(port: type) -> dict[str, Any]:
    """Return what a port declares, its parts included."""
    parts = [each for each in port.__mro__ if each.__module__.startswith("wherry.broker.port")]
    return {name: value for part in parts for name, value in vars(part).items() if not name.startswith("_")}


CALLS = declared(BrokerPort)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_port_is_a_call_of_the_broker_and_documents_what_it_does(name: str):
    found = inspect.getattr_static(Broker, name)
    text = found.fget.__doc__ if isinstance(found, property) else found.__doc__
    assert text, f"Broker.{name} has no docstring"
    if inspect.isfunction(found):
        assert list(inspect.signature(found).parameters) == list(inspect.signature(CALLS[name]).parameters)
