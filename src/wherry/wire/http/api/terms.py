"""The values of queries and bodies, with the ranges that the OpenAPI document shows.

The broker checks each value and words the refusal; here the ranges are only described, so that callers need not find
them out by trying. `tests/integration/test_http_schemathesis.py` checks that they are true.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from wherry.model import limits
from wherry.model.calls.fate import FATES, OUTCOME_MS_MAX
from wherry.model.calls.lease import PULL_MESSAGES_MAX
from wherry.model.calls.listing import (
    DEAD_CURSOR,
    LIMIT_MAX,
    MESSAGE_CURSOR,
    SCHEDULED_CURSOR,
)
from wherry.model.calls.publish import FINGERPRINT_MAX
from wherry.model.calls.receipts import SETTLED_MAX
from wherry.model.catalog.key import RIGHTS_MAX
from wherry.model.catalog.route import BINDINGS_MAX
from wherry.model.catalog.subscription import ASSIGNMENTS, BUFFER_MAX, LEASE_MS_MAX
from wherry.model.catalog.topic import COUNT_MAX
from wherry.model.catalog.webhook import (
    BATCH_MAX,
    IN_FLIGHT_MAX,
    REMOVE_AFTER_MAX,
    SECRET_CHARS_MAX,
    SECRET_CHARS_MIN,
    TIMEOUT_MS,
    URL_CHARS_MAX,
)

WAIT_MS_MAX = 60_000
CALLBACK = "^https?://[^\\x00-\\x20\\x7f]+$"
VISIBLE = "^[^\\x00-\\x1f\\x7f]+$"


def json_schema(**words: object) -> Meta:
    """Return JSON Schema keywords for the OpenAPI document; nothing else reads them."""
    return Meta(extra_json_schema=words)


def between(low: int, high: int) -> Meta:
    """Describe a range, both ends included."""
    return json_schema(minimum=low, maximum=high)


def name(length_max: int, pattern: str = VISIBLE) -> Meta:
    """Describe a name. Its bound is in bytes of UTF-8; a schema can only count characters."""
    return json_schema(minLength=1, maxLength=length_max, pattern=pattern)


def graphic(length_max: int) -> Meta:
    """Describe a text of graphic characters of any script, which no pattern can express."""
    return json_schema(minLength=1, maxLength=length_max, format="graphic")


TimeMs: TypeAlias = Annotated[int, between(0, limits.TIME_MS_MAX)]
DelayMs: TypeAlias = Annotated[int, between(0, LEASE_MS_MAX)]
LeaseMs: TypeAlias = Annotated[int, between(1, LEASE_MS_MAX)]
WaitMs: TypeAlias = Annotated[int, between(0, WAIT_MS_MAX)]
FateWord: TypeAlias = Annotated[str, json_schema(enum=list(FATES))]
OutcomeMs: TypeAlias = Annotated[int, between(1, OUTCOME_MS_MAX)]
CallbackUrl: TypeAlias = Annotated[str, json_schema(minLength=1, maxLength=URL_CHARS_MAX, pattern=CALLBACK)]
Partition: TypeAlias = Annotated[int, between(0, limits.PARTITIONS_MAX - 1)]
After: TypeAlias = Annotated[str, json_schema(pattern=MESSAGE_CURSOR)]
AfterTime: TypeAlias = Annotated[str, json_schema(pattern=SCHEDULED_CURSOR)]
AfterDead: TypeAlias = Annotated[str, json_schema(pattern=DEAD_CURSOR)]
Offset: TypeAlias = Annotated[int, between(0, limits.OFFSET_MAX)]
Priority: TypeAlias = Annotated[int, between(0, limits.PRIORITY_MAX)]
Sequence: TypeAlias = Annotated[int, between(0, 1 << 62)]
Fingerprint: TypeAlias = Annotated[int, between(1, FINGERPRINT_MAX)]
Version: TypeAlias = Annotated[int, between(1, 1 << 62)]
Limit: TypeAlias = Annotated[int, between(1, LIMIT_MAX)]
DeadLimit: TypeAlias = Annotated[int, between(1, COUNT_MAX)]
Rate: TypeAlias = Annotated[int, between(1, 1 << 40)]
PullMessages: TypeAlias = Annotated[int, between(1, PULL_MESSAGES_MAX)]
Buffer: TypeAlias = Annotated[int, between(1, BUFFER_MAX)]
ConsumerName: TypeAlias = Annotated[str, graphic(limits.CONSUMER_ID_CHARS_MAX)]
ProducerName: TypeAlias = Annotated[str, graphic(limits.PRODUCER_ID_CHARS_MAX)]
KeyName: TypeAlias = Annotated[str, name(limits.KEY_NAME_BYTES_MAX)]
BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Base64: TypeAlias = Annotated[str, json_schema(pattern=BASE64, contentEncoding="base64")]
RECEIPT = "^[0-9]{1,19}(:[0-9]{1,13}(-[0-9]{1,13})?)?$"
Receipt: TypeAlias = Annotated[str, json_schema(pattern=RECEIPT, examples=["77:12"])]
ReceiptList: TypeAlias = Annotated[list[Receipt], json_schema(minItems=1, maxItems=SETTLED_MAX)]
HeaderMatch: TypeAlias = Annotated[str, json_schema(pattern="^[^:]*:", examples=["region:eu"])]

PATH: dict[str, Meta] = {
    "topic": name(limits.TOPIC_NAME_BYTES_MAX),
    "subscription": name(limits.SUBSCRIPTION_NAME_CHARS_MAX),
    "consumer": graphic(limits.CONSUMER_ID_CHARS_MAX),
    "route": name(limits.ROUTE_NAME_CHARS_MAX),
    "key": name(limits.STAGE_KEY_CHARS_MAX),
    "id": name(limits.MESSAGE_ID_BYTES_MAX),
    "schema": json_schema(enum=["message", "delivered"]),
    "session": name(64, "^[0-9A-Za-z_-]+$"),
    "query": graphic(limits.QUERY_ID_CHARS_MAX),
    "folder": name(64, "^[a-z-]+$"),
    "file": name(64, "^[a-z-]+[.](js|css|png)$"),
}
"""Names in paths."""

EXAMPLES = {
    "topic": "jobs",
    "subscription": "workers",
    "consumer": "ann",
    "route": "orders",
    "folder": "pages",
    "file": "swagger-ui.css",
}

MODEL: dict[str, Meta] = {
    "partitions": between(1, limits.PARTITIONS_MAX),
    "payload_bytes_max": between(1, limits.PAYLOAD_BYTES_MAX),
    "messages_max": between(1, COUNT_MAX),
    "bytes_max": between(1, COUNT_MAX),
    "dead_messages_max": between(0, COUNT_MAX),
    "keep_ms": between(0, limits.TIME_MS_MAX),
    "keep_bytes": between(0, COUNT_MAX),
    "start_offset": between(0, limits.OFFSET_MAX),
    "start_ms": between(0, limits.TIME_MS_MAX),
    "lease_ms": between(1, LEASE_MS_MAX),
    "assignment": json_schema(enum=ASSIGNMENTS),
    "buffer_messages": between(1, BUFFER_MAX),
    "buffer_bytes": between(1, BUFFER_MAX),
    "peer": graphic(limits.NODE_NAME_CHARS_MAX),
    "attempts": between(1, limits.ATTEMPTS_MAX),
    "first_ms": between(0, LEASE_MS_MAX),
    "factor": between(1, 1_000),
    "cap_ms": between(0, limits.TIME_MS_MAX),
    "jitter": between(0, 1),
    "url": json_schema(format="webhook-url", maxLength=URL_CHARS_MAX, examples=["https://example.org/hook"]),
    "secret": json_schema(minLength=SECRET_CHARS_MIN, maxLength=SECRET_CHARS_MAX, writeOnly=True),
    "batch": between(1, BATCH_MAX),
    "timeout_ms": between(*TIMEOUT_MS),
    "remove_after": between(1, REMOVE_AFTER_MAX),
    "in_flight": between(1, IN_FLIGHT_MAX),
    "topic": name(limits.TOPIC_NAME_BYTES_MAX),
    "topics": name(limits.TOPIC_NAME_BYTES_MAX),
    "match": json_schema(maxLength=limits.KEY_BYTES_MAX),
    "route": name(limits.ROUTE_NAME_CHARS_MAX),
    "otherwise": name(limits.ROUTE_NAME_CHARS_MAX),
    "headers": json_schema(maxProperties=limits.HEADERS_MAX),
    "rights": json_schema(minItems=1, maxItems=RIGHTS_MAX),
    "bindings": json_schema(maxItems=BINDINGS_MAX),
}
"""Fields of the model's structs, by name."""
