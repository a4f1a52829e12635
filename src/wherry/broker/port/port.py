"""What wires, `queueing`, `node` and the client need of a broker: all of it, as interfaces.

`Broker` implements the port in this process, which the types prove (`tests/unit/broker/test_port.py`); a router to
other processes or nodes can stand behind it as well. So calls take and return values: names, numbers, types of
`model`, Arrow batches. What is not a value, and why:

- a consumer and a delivery, objects that the caller who joined holds;
- `catalog`, since names are looked up in it for each message that is routed: a node without a journal keeps a copy;
- `slices`, `metrics` and `trace`, which are about this process and its loop, wherever the messages are.
"""

from __future__ import annotations

from typing import Protocol

from wherry.broker.port.administer import AdministerPort, ConditionPort
from wherry.broker.port.consume import ConsumePort, SettlePort
from wherry.broker.port.inspect import (
    FiguresPort,
    InventoryPort,
    ListingPort,
    LogPort,
    OutcomePort,
)
from wherry.broker.port.publish import PublishPort


class BrokerPort(
    PublishPort,
    ConsumePort,
    SettlePort,
    InventoryPort,
    FiguresPort,
    ListingPort,
    OutcomePort,
    LogPort,
    AdministerPort,
    ConditionPort,
    Protocol,
):
    """All of it together."""
