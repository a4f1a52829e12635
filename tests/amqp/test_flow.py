"""A channel that asks for no more deliveries gets none, until it asks again; others go on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amqp.raw import CHANNEL_FLOW, CHANNEL_FLOW_OK, CONSUME, CONSUME_OK, DELIVER, Raw, long, short
from tests.amqp.wires import LASTING, counts, declared, durable, over
from wherry.broker.broker import Broker


@pytest.mark.rows("Q7")
def test_deliveries_stop_and_continue_as_the_channel_asks():
    async def story(broker: Broker, url: str, apart: Any) -> None:
        def client() -> Raw:
            raw = Raw(url).opened()
            durable(raw, "q")
            raw.call(1, CHANNEL_FLOW, b"\0")
            assert raw.expect(CHANNEL_FLOW_OK).arguments == b"\0"
            raw.call(1, CONSUME, b"\0\0" + short("q") + short("") + b"\0" + long(b""))
            raw.expect(CONSUME_OK)
            raw.publish("q", b"held back", LASTING)
            assert declared(raw, "q") == 1
            return raw

        with await apart(client) as raw:
            assert counts(broker, "q") == (1, 0)
            raw.call(1, CHANNEL_FLOW, b"\1")
            assert (await apart(raw.expect, CHANNEL_FLOW_OK)).arguments == b"\1"
            assert (await apart(raw.expect, DELIVER)).channel == 1
            assert counts(broker, "q") == (0, 1)

    over(story)
