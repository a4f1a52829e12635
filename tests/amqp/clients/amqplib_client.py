"""amqplib of node: a process that carries out one call after the other; see `node/driver.js`."""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import subprocess
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.amqp.clients.port import PATIENCE_S, Address, Channel, Client, Connection, Declared, Message, Refused

DRIVER = Path(__file__).parents[1] / "node" / "driver.js"

PROPERTIES = {
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "headers": "headers",
    "deliveryMode": "delivery_mode",
    "priority": "priority",
    "correlationId": "correlation_id",
    "replyTo": "reply_to",
    "expiration": "expiration",
    "messageId": "message_id",
    "timestamp": "timestamp",
    "type": "type",
    "userId": "user_id",
    "appId": "app_id",
}
"""Its words, and ours."""


def as_refused(found: dict[str, Any]) -> Refused:
    return Refused(found["scope"], found["code"], found["text"])


def as_message(found: dict[str, Any]) -> Message:
    """Return a message with the properties that were set."""
    fields, properties = found["fields"], found["properties"]
    return Message(
        body=base64.b64decode(found["body"]),
        exchange=fields["exchange"],
        key=fields["routingKey"],
        tag=fields.get("deliveryTag", 0),
        redelivered=fields.get("redelivered", False),
        consumer=fields.get("consumerTag", ""),
        left=fields.get("messageCount", 0),
        code=fields.get("replyCode", 0),
        text=fields.get("replyText", ""),
        properties={
            ours: properties[theirs] for theirs, ours in PROPERTIES.items() if properties.get(theirs) not in (None, {})
        },
    )


class Servant:
    """The process, and which call waits for which answer."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [os.environ["NODE"], str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.channels: dict[int, AmqpLibChannel] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def new_id(self) -> int:
        return next(self._numbers)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "number" in found:
                self._waiting.pop(found["number"]).put(found)
            else:
                self.channels[found["channel"]].take_event(found)

    def do(self, call: str, **rest: Any) -> Any:
        """Do it; what comes of it."""
        number = next(self._numbers)
        box = self._waiting[number] = queue.SimpleQueue()
        assert self._process.stdin is not None
        print(json.dumps({"call": call, "number": number, **rest}), file=self._process.stdin, flush=True)
        found = box.get(timeout=3 * PATIENCE_S)
        if found.get("refusal") is not None:
            raise as_refused(found["refusal"])
        assert "error" not in found, found["error"]
        return found["result"]


class AmqpLibChannel(Channel):
    """A channel."""

    adds = frozenset({"delivery_mode", "headers"})

    def __init__(self, servant: Servant, on: int, confirms: bool) -> None:
        super().__init__()
        self._servant, self._id = servant, servant.new_id()
        self._why: Refused | None = None
        servant.channels[self._id] = self
        self._do("channel", on=on, confirms=confirms)

    def _do(self, call: str, **rest: Any) -> Any:
        return self._servant.do(call, id=self._id, **rest)

    def take_event(self, found: dict[str, Any]) -> None:
        """Take an event that the process sends by itself."""
        if found["event"] == "arrived":
            self.arrived.append(as_message(found["message"]))
        elif found["event"] == "returned":
            self.returned.append(as_message(found["message"]))
        elif found["event"] == "cancelled":
            self.cancelled.append(found["tag"])
        elif found["refusal"] is not None:
            self._why = as_refused(found["refusal"])

    def pump(self, seconds: float) -> None:
        waits = (self.arrived, self.returned, self.cancelled)
        before, end = [len(box) for box in waits], time.monotonic() + seconds
        while [len(box) for box in waits] == before and time.monotonic() < end:
            if self._why is not None:
                raise self._why
            time.sleep(0.002)

    def close(self) -> None:
        self._do("close")

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Declared:
        options = {"durable": durable, "exclusive": exclusive, "autoDelete": auto_delete, "arguments": arguments or {}}
        call = ("findQueue", {}) if passive else ("declareQueue", {"options": options})
        answer = self._do(call[0], name=name, **call[1])
        return Declared(answer["queue"], answer["messageCount"], answer["consumerCount"])

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        answer = self._do("deleteQueue", name=name, options={"ifUnused": if_unused, "ifEmpty": if_empty})
        return int(answer["messageCount"])

    def purge(self, name: str) -> int:
        return int(self._do("purge", name=name)["messageCount"])

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self._do("bind", names=[queue, exchange, key], args=arguments or {})

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self._do("unbind", names=[queue, exchange, key], args=arguments or {})

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        if passive:
            self._do("findExchange", name=name)
            return
        options = {"durable": durable, "autoDelete": auto_delete, "internal": internal, "arguments": arguments or {}}
        self._do("declareExchange", name=name, kind=kind, options=options)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._do("deleteExchange", name=name, options={"ifUnused": if_unused})

    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        self._do("bindExchange", names=[destination, source, key], args=arguments or {})

    def unbind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        self._do("unbindExchange", names=[destination, source, key], args=arguments or {})

    def publish(
        self, exchange: str, key: str, body: bytes = b"", *, mandatory: bool = False, **properties: Any
    ) -> bool:
        options = {theirs: properties[ours] for theirs, ours in PROPERTIES.items() if ours in properties}
        return self._publish(exchange, key, [body], {"mandatory": mandatory, **options})[0]

    def publish_all(self, exchange: str, key: str, bodies: list[bytes]) -> list[bool]:
        return self._publish(exchange, key, bodies, {})

    def _publish(self, exchange: str, key: str, bodies: list[bytes], options: dict[str, Any]) -> list[bool]:
        packed = [base64.b64encode(body).decode() for body in bodies]
        outcomes: list[bool] = self._do("publish", exchange=exchange, key=key, bodies=packed, options=options)
        return outcomes

    def qos(self, count: int, *, whole_channel: bool = False) -> None:
        self._do("qos", count=count, wholeChannel=whole_channel)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        options = {"consumerTag": tag, "noAck": no_ack, "exclusive": exclusive, "arguments": arguments or {}}
        return str(self._do("consume", queue=queue, options=options))

    def cancel(self, tag: str) -> None:
        self._do("cancel", tag=tag)

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        found = self._do("get", queue=queue, options={"noAck": no_ack})
        return None if found is None else as_message(found)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._do("ack", tag=tag, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._do("nack", tag=tag, multiple=multiple, requeue=requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._do("reject", tag=tag, requeue=requeue)

    def recover(self) -> None:
        self._do("recover")

    def tx_select(self) -> None:
        raise NotImplementedError("amqplib has no transactions")

    def tx_commit(self) -> None:
        raise NotImplementedError("amqplib has no transactions")

    def tx_rollback(self) -> None:
        raise NotImplementedError("amqplib has no transactions")


class AmqpLibConnection(Connection):
    """A connection."""

    def __init__(self, servant: Servant, address: Address) -> None:
        self._servant, self._id = servant, servant.new_id()
        opened = servant.do("connect", id=self._id, address=asdict(address))
        self.server_properties = opened["properties"]
        self.channel_max, self.frame_max = opened["channelMax"], opened["frameMax"]
        self.heartbeat_s = opened["heartbeat"]

    def channel(self, *, confirms: bool = False) -> Channel:
        return AmqpLibChannel(self._servant, self._id, confirms)

    def close(self) -> None:
        self._servant.do("disconnect", id=self._id)

    def is_open(self) -> bool:
        return bool(self._servant.do("isOpen", id=self._id))

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    def update_secret(self, secret: str, reason: str) -> None:
        self._servant.do("updateSecret", id=self._id, secret=secret, reason=reason)


class AmqpLib(Client):
    """The library."""

    def __init__(self) -> None:
        self.servant = Servant()

    def connect(self, address: Address) -> Connection:
        return AmqpLibConnection(self.servant, address)
