"""The calls of a broker that wires, `queueing`, `node` and the client may use, as interfaces.

`Broker` implements the port in this process, which the types prove (`tests/unit/broker/test_port.py`); a router to
other processes or nodes can implement it as well. So calls take and return values: names, numbers, types of
`model`, Arrow batches. These are not values:

| what | how something else than a broker in this process provides it |
|---|---|
| `consumer`, `internal_consumer`, what `pull` returns, `read_log` | objects whose methods are calls again |
| `settler` | the calls that end leases, under one name; `applied` is called once a nack changed the state |
| `gathering` | gathers rows in this process, and needs no more than the calls of `SubmitPort` |
| the position that `submit` and `submit_stage` return | a number of its own, which `stored` takes |
| `catalog` | a copy that is kept current, since names are looked up in it for each message that is routed |
| `watch_dead_letters`, `watch_webhooks`, `on_outcome` | a function or an event of this process, for changes elsewhere |
| `each_dead` | an iterator over the pages of `dead_page` |
| `alter_key`: a function from key to key | reads, compares and writes the key, and again if another client changed it |
| `check_url`: a function that judges a URL | set by the node, called in this process before a URL is stored |
| `slices`, `metrics`, `trace`, `at_end_of_turn` | belong to this process and its loop, wherever the messages are |
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
    """All calls of a broker."""
