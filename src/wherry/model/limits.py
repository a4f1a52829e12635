"""Hard limits, each tested at both edges. Units are in the names."""

from __future__ import annotations

from typing import Final

TOPIC_NAME_BYTES_MAX: Final = 1_024
CONSUMER_ID_CHARS_MAX: Final = 256
SUBSCRIPTION_NAME_CHARS_MAX: Final = 256
MESSAGE_ID_BYTES_MAX: Final = 256
KEY_BYTES_MAX: Final = 1_024
HEADERS_MAX: Final = 256
HEADERS_BYTES_MAX: Final = 65_535  # names and values of one message together
ENVELOPE_BYTES_MAX: Final = 262_144
LABELS_BYTES_MAX: Final = 65_535  # names and values of one topic, route or binding together
PRODUCER_ID_CHARS_MAX: Final = 256
NODE_NAME_CHARS_MAX: Final = 64
STAGE_KEY_CHARS_MAX: Final = 512
QUERY_ID_CHARS_MAX: Final = 100  # of a streaming query of Spark
ROUTE_NAME_CHARS_MAX: Final = 256
KEY_NAME_BYTES_MAX: Final = 256  # of an API key
FLIGHT_KEY_CHARS_MAX: Final = (
    7_000  # of a key or token over Flight: gRPC allows 8,192 bytes of headers, path and host included
)
PARTITIONS_MAX: Final = 65_535
FLOW_PARTITIONS_MAX: Final = 8  # of a flow topic: each node remembers each partition of each other node
CONSUMERS_PER_SUBSCRIPTION_MAX: Final = 1_000_000

PAYLOAD_BYTES_DEFAULT: Final = 65_535  # strictly under 64 KB unless a topic asks for more
PAYLOAD_BYTES_MAX: Final = 25_165_824  # where a topic allows it: with everything else of a message it fits an entry
BATCH_MESSAGES_MAX: Final = 1_000_000

ATTEMPT_SHOWN_MAX: Final = 65_535  # in a delivery: further attempts are counted, but shown as this number
PRIORITY_MAX: Final = 65_535
PRIORITY_DEFAULT: Final = 32_768  # half of the range is more urgent than the default, half is less
TIME_MS_MAX: Final = (1 << 43) - 1  # year 2248; ranks are packed into 44 bits for sorting
ATTEMPTS_MAX: Final = 65_535
OFFSET_MAX: Final = (1 << 43) - 1  # an offset is also a rank in a fifo topic

ERROR_CHARS_MAX: Final = 1_024  # of the error or the reason that is stored with a message
PRODUCER_CALLS_MAX: Final = 64  # remembered for each producer: so many calls may be in flight
