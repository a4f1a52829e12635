"""One entry of every kind of operation, with the values that version 1 wrote: what the golden entries must give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.model import ops
from wherry.model.catalog.key import (
    Grant,
    Key,
    Right,
    User,
)
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.ops import Entry
from wherry.model.row_batch import AS_ROWS, of_columns, of_payloads
from wherry.model.schema import MESSAGE, STORED, Message, compact, presence

AT_US = 1_700_000_000_123_456
BIG = (1 << 43) - 1


def column(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


PLAIN = compact([b"one", b"", "drei ☃"])
MESSAGES = compact(
    [
        Message(payload=b"a", id="mine", key="k", priority=0, due_ms=0, expires_ms=BIG, headers={"h": "1", "": "2"}),
        Message(payload=b"\x00\xff", key="", priority=65_535, envelope=b"\x01"),
    ]
)
WHOLE = pa.RecordBatch.from_arrays(
    [
        pa.array(["i"]),
        pa.array(["schlüssel"]),
        pa.array([7], pa.uint16()),
        pa.array([1], pa.int64()).view(MESSAGE.field("due").type),
        pa.array([2], pa.int64()).view(MESSAGE.field("expires").type),
        pa.array([[("n", "v")]], MESSAGE.field("headers").type),
        pa.array([b"envelope"]),
        pa.array([b"payload"]),
        pa.array(["blob://x"]),
        pa.array([bytes(range(32))], pa.binary(32)),
    ],
    schema=pa.schema([MESSAGE.field(name) for name in STORED]),
)
"""Every column there is."""

TOPIC = Topic(
    name="t",
    order="timeline",
    partitions=65_535,
    persistent=False,
    payload_bytes_max=1_048_576,
    messages_max=5,
    bytes_max=6,
    overflow="drop-oldest",
    dead_messages_max=7,
    keep="age",
    keep_ms=8,
    expired="dead-letter",
)
SUBSCRIPTION = Subscription(
    topic="t",
    name="s",
    start="offset",
    start_offset=4,
    key_order=True,
    lease_ms=5,
    retry=Retry(attempts=None, first_ms=1, factor=1.5, cap_ms=9, jitter=0.25),
    assignment="shared",
    buffer_messages=10,
    buffer_bytes=11,
)
ROUTE = Route(
    name="r", kind="headers", bindings=(Binding(topic="t", match="a.#", headers={"x": "y"}, any_header=True),)
)
KEY = Key(
    id="Ab3dEf9h",
    digest=bytes(range(32)),
    name="ann ☃",
    rights=(Right("publish", "orders.*"), Right("consume", "jobs"), Right("admin", "*")),
    created_ms=AT_US // 1000,
    expires_ms=BIG,
)
PUBLISH = ops.Publish(1, 0, BIG - 3, 3, presence(PLAIN), 13)

BINDING = Binding(topic="t", match="a.#", headers={"x": "1"}, any_header=True, labels={"made": "elsewhere"})

ENTRIES: dict[str, Entry] = {
    "open": Entry(AT_US, [ops.Opened(3, "host:1")]),
    "bind": Entry(AT_US, [ops.Bind("r", BINDING), ops.Bind("r", Binding(route="other"))]),
    "bind-": Entry(AT_US, [ops.Unbind("r", BINDING)]),
    "topic": Entry(AT_US, [ops.PutTopic(1, TOPIC), ops.PutTopic(2, Topic(name="plain"))]),
    "topic-": Entry(AT_US, [ops.DeleteTopic(1)]),
    "sub": Entry(
        AT_US,
        [
            ops.PutSubscription(3, 1, SUBSCRIPTION, column(4, 0, BIG)),
            ops.PutSubscription(4, 2, Subscription(topic="plain", name="p"), column(0)),
        ],
    ),
    "sub-": Entry(AT_US, [ops.DeleteSubscription(3, "it fell behind")]),
    "admit": Entry(AT_US, [ops.Admit(3, 1, 9, column(2, 4, 7, 8), column(5, 6, 7), column(-1, 0, BIG))]),
    "route": Entry(AT_US, [ops.PutRoute(ROUTE), ops.PutRoute(Route(name="f", kind="fanout"))]),
    "route-": Entry(AT_US, [ops.DeleteRoute("r")]),
    "pub": Entry(
        AT_US,
        [PUBLISH, ops.Publish(1, 65_534, 0, 2, presence(MESSAGES), 11, "overflow")],
        [PLAIN, MESSAGES],
    ),
    "seq": Entry(AT_US, [ops.Sequenced(1, "p", 1 << 62, 5, column(0, 7, 3, 2, 0, 2))]),
    "reserve": Entry(AT_US, [ops.Reserve(1, 2, 1 << 20)]),
    "settle": Entry(AT_US, [ops.Settle(3, 0, column(0, 5, 7, 8), "acked"), ops.Settle(3, 1, column(), "discarded")]),
    "fail": Entry(
        AT_US,
        [
            ops.Fail(3, 0, column(5, 6), column(1, 2), column(-(1 << 63), 1), column(9, BIG), "no ☃"),
            ops.Fail(3, 0, column(1), column(1), column(), column(0), ""),
        ],
    ),
    "bury": Entry(AT_US, [ops.Bury(1, 3, 0, column(5), column(-1), "2 failed deliveries", "boom", True)]),
    "redrive": Entry(AT_US, [ops.Redrive(1, 3, 0, column(5, 9), column(5, 9), column(-1, 4), "ops")]),
    "discard": Entry(
        AT_US, [ops.Discard(1, 0, 0, column(5), "ops"), ops.Discard(1, 0, 0, column(6), "ops", redriven=True)]
    ),
    "remove": Entry(
        AT_US,
        [
            ops.Remove(1, 0, column(0, 1), "cancelled"),
            ops.Remove(1, 0, column(1, 2), "expired"),
            ops.Remove(1, 0, column(2, 3), "dropped"),
            ops.Remove(1, 0, column(3, BIG), "trimmed"),
        ],
    ),
    "replace": Entry(AT_US, [ops.Replace(1, 0, 4, 2, ops.Publish(1, 0, 9, 1, presence(WHOLE), 40))], [WHOLE]),
    "stage": Entry(AT_US, [ops.Stage("k", 1, 0, 2, presence(MESSAGES), 11), ops.Stage("k", 0, 0, 0, 0, 0)], [MESSAGES]),
    "commit": Entry(AT_US, [ops.Settle(3, 0, column(1, 2), "acked"), ops.Commit("k", column(7, -1))]),
    "abort": Entry(AT_US, [ops.Abort("k", "asked for")]),
    "key": Entry(
        AT_US,
        [
            ops.PutKey(KEY),
            ops.PutKey(Key(id="00000000", digest=bytes(32), name="n", rights=(Right("admin", "a"),), created_ms=0)),
        ],
    ),
    "key-": Entry(AT_US, [ops.DeleteKey("Ab3dEf9h")]),
    "sub+": Entry(AT_US, [ops.ChangeSubscription(3, SUBSCRIPTION)]),
    "watch": Entry(AT_US, [PUBLISH, ops.Watch(1, 0, 7, 3, "https://example.com/☃?a=1")], [PLAIN]),
    "told": Entry(
        AT_US, [ops.Reported(1, 65_534, column(7, BIG), column(3, 8)), ops.Reported(1, 0, column(), column())]
    ),
}

USER = Key(
    id="Us3r0000",
    digest=bytes(range(32)),
    name="ann ☃",
    rights=(Right("consume", "jobs"),),
    created_ms=AT_US // 1000,
    user=User(salt=b"salt", tags=("administrator",), grants=(Grant("/", "", "^jobs$", ".*"),)),
)

ROWS = of_columns(
    {
        "payload": [b"a", b"\x00\xff"],
        "key": ["k ☃", None],
        "priority": [0, 65_535],
        "due": [BIG, None],
        "expires": [None, 7],
        "headers": [[("h", "1"), ("", "2")], None],
        "envelope": [None, b"\x01"],
    }
)
BARE = of_payloads([b"alone"])

ADDED: dict[str, Entry] = {
    "key": Entry(AT_US, [ops.PutKey(USER)]),
    "seq": Entry(AT_US, [ops.Sequenced(1, "k ☃", 0, 5, column(0, 7, 5), (1 << 63) - 1)]),
    "settle": Entry(AT_US, [ops.Settle(3, 1, column(5, 7, 9, 10), "expired")]),
    "sub-": Entry(AT_US, [ops.DeleteSubscription(3, "it fell behind", keep_dead=True)]),
    "commit": Entry(
        AT_US, [ops.Commit("job/1", column(7, -1), ["job/1/0 ☃", "job/1/1"]), ops.Commit("j", column(), [])]
    ),
    "pub": Entry(
        AT_US,
        [
            ops.Publish(1, 0, 7, 2, ROWS.columns | AS_ROWS, ROWS.size),
            ops.Publish(1, 0, 9, 1, BARE.columns | AS_ROWS, BARE.size),
            ops.Publish(1, 0, 10, 3, presence(PLAIN), 11),
        ],
        [ROWS, BARE, PLAIN],
    ),
    "discard": Entry(AT_US, [ops.Discard(1, 3, 0, column(5, 7), "exchange ☃", redriven=True, reason="expired")]),
    "flow": Entry(
        AT_US,
        [
            ops.Publish(1, 0, 0, 3, presence(PLAIN), 11, origin="a ☃", from_hub=True),
            ops.Publish(1, 0, 3, 1, BARE.columns | AS_ROWS, BARE.size, origin="leaf-7"),
            ops.Sequenced(1, "mesh:a ☃:5f0c9d1e.3:0", 1 << 40, 3, column()),
        ],
        [PLAIN, BARE],
    ),
    "flow-topic": Entry(AT_US, [ops.PutTopic(1, Topic(name="t", mesh="flow"))]),
    "flow-peers": Entry(
        AT_US,
        [
            ops.PutSubscription(3, 1, Subscription(topic="t", name="mesh.b", peer="b", peer_role="hub"), column(0)),
            ops.PutSubscription(
                4, 1, Subscription(topic="t", name="mesh-leaf.c ☃", peer="c ☃", peer_role="leaf"), column(9)
            ),
        ],
    ),
}
"""Entries with fields, values or bodies that came later. Their folder is their own, since a file never changes."""
