"""Bytes that were not made by our own encoder.

The methods were encoded once with pika 1.4.4, and again with pamqp 4.0.1 where that knows the method and would choose
the same type for an integer; both agreed. The tables and properties were written by hand from the
specification and from RabbitMQ's reading of it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from wherry.queueing.message.properties import Properties
from wherry.queueing.message.table import (
    Float32,
    Int8,
    Int16,
    Int64,
    SpecInt16,
    SpecInt64,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)
from wherry.wire.amqp.codec import methods as m

METHODS: list[tuple[m.Method, str]] = [
    (
        m.ConnectionStart(
            0, 9, {"capabilities": {"basic.nack": True}, "product": "Wherry"}, b"PLAIN AMQPLAIN", b"en_US"
        ),
        "000a000a0009000000320c6361706162696c6974696573460000000d0a62617369632e6e61636b74010770726f6475637453000000065768657272790000000e504c41494e20414d51504c41494e00000005656e5f5553",
    ),
    (
        m.ConnectionStartOk({"product": "pika"}, "PLAIN", b"\0guest\0guest", "en_US"),
        "000a000b000000110770726f64756374530000000470696b6105504c41494e0000000c00677565737400677565737405656e5f5553",
    ),
    (m.ConnectionSecure(b"who?"), "000a00140000000477686f3f"),
    (m.ConnectionSecureOk(b"me"), "000a0015000000026d65"),
    (m.ConnectionTune(2047, 131072, 60), "000a001e07ff00020000003c"),
    (m.ConnectionTuneOk(2047, 131072, 60), "000a001f07ff00020000003c"),
    (m.ConnectionOpen("/", "", False), "000a0028012f0000"),
    (m.ConnectionOpenOk(""), "000a002900"),
    (
        m.ConnectionClose(320, "CONNECTION_FORCED - bye", 10, 40),
        "000a0032014017434f4e4e454354494f4e5f464f52434544202d20627965000a0028",
    ),
    (m.ConnectionCloseOk(), "000a0033"),
    (m.ConnectionBlocked("low on disk"), "000a003c0b6c6f77206f6e206469736b"),
    (m.ConnectionUnblocked(), "000a003d"),
    (m.ConnectionUpdateSecret(b"token", "expired"), "000a004600000005746f6b656e0765787069726564"),
    (m.ConnectionUpdateSecretOk(), "000a0047"),
    (m.ChannelOpen(""), "0014000a00"),
    (m.ChannelOpenOk(b""), "0014000b00000000"),
    (m.ChannelFlow(True), "0014001401"),
    (m.ChannelFlowOk(True), "0014001501"),
    (
        m.ChannelClose(404, "NOT_FOUND - no queue 'x' in vhost '/'", 50, 20),
        "001400280194254e4f545f464f554e44202d206e6f2071756575652027782720696e2076686f737420272f2700320014",
    ),
    (m.ChannelCloseOk(), "00140029"),
    (m.AccessRequest("/data", False, True, False, True, True), "001e000a052f646174611a"),
    (m.AccessRequestOk(1), "001e000b0001"),
    (
        m.ExchangeDeclare(0, "e", "topic", False, True, False, True, False, {"alternate-exchange": "a"}),
        "0028000a0000016505746f7069630a0000001912616c7465726e6174652d65786368616e6765530000000161",
    ),
    (m.ExchangeDeclareOk(), "0028000b"),
    (m.ExchangeDelete(0, "e", True, False), "002800140000016501"),
    (m.ExchangeDeleteOk(), "00280015"),
    (m.ExchangeBind(0, "d", "s", "k.#", False, {}), "0028001e000001640173036b2e230000000000"),
    (m.ExchangeBindOk(), "0028001f"),
    (m.ExchangeUnbind(0, "d", "s", "k.#", True, {}), "00280028000001640173036b2e230100000000"),
    (m.ExchangeUnbindOk(), "00280033"),
    (
        m.QueueDeclare(0, "q", False, True, False, True, False, {"x-max-priority": 10}),
        "0032000a000001710a000000140e782d6d61782d7072696f72697479490000000a",
    ),
    (m.QueueDeclareOk("q", 3, 1), "0032000b01710000000300000001"),
    (
        m.QueueBind(0, "q", "e", "k", False, {"x-match": "all"}),
        "00320014000001710165016b000000001007782d6d617463685300000003616c6c",
    ),
    (m.QueueBindOk(), "00320015"),
    (m.QueuePurge(0, "q", True), "0032001e0000017101"),
    (m.QueuePurgeOk(70000), "0032001f00011170"),
    (m.QueueDelete(0, "q", True, True, False), "003200280000017103"),
    (m.QueueDeleteOk(7), "0032002900000007"),
    (m.QueueUnbind(0, "q", "e", "k", {}), "00320032000001710165016b00000000"),
    (m.QueueUnbindOk(), "00320033"),
    (m.BasicQos(0, 100, True), "003c000a00000000006401"),
    (m.BasicQosOk(), "003c000b"),
    (
        m.BasicConsume(0, "q", "tag", False, True, True, False, {"x-priority": 5}),
        "003c0014000001710374616706000000100a782d7072696f726974794900000005",
    ),
    (m.BasicConsumeOk("tag"), "003c001503746167"),
    (m.BasicCancel("tag", True), "003c001e0374616701"),
    (m.BasicCancelOk("tag"), "003c001f03746167"),
    (m.BasicPublish(0, "e", "k", True, False), "003c002800000165016b01"),
    (m.BasicReturn(312, "NO_ROUTE", "e", "k"), "003c00320138084e4f5f524f5554450165016b"),
    (m.BasicDeliver("tag", 258, True, "e", "k"), "003c003c037461670000000000000102010165016b"),
    (m.BasicGet(0, "q", True), "003c00460000017101"),
    (m.BasicGetOk(1, False, "e", "k", 9), "003c00470000000000000001000165016b00000009"),
    (m.BasicGetEmpty(""), "003c004800"),
    (m.BasicAck(258, True), "003c0050000000000000010201"),
    (m.BasicReject(258, False), "003c005a000000000000010200"),
    (m.BasicRecoverAsync(True), "003c006401"),
    (m.BasicRecover(True), "003c006e01"),
    (m.BasicRecoverOk(), "003c006f"),
    (m.BasicNack(258, True, False), "003c0078000000000000010201"),
    (m.ConfirmSelect(True), "0055000a01"),
    (m.ConfirmSelectOk(), "0055000b"),
    (m.TxSelect(), "005a000a"),
    (m.TxSelectOk(), "005a000b"),
    (m.TxCommit(), "005a0014"),
    (m.TxCommitOk(), "005a0015"),
    (m.TxRollback(), "005a001e"),
    (m.TxRollbackOk(), "005a001f"),
]

VALUES: list[tuple[Any, bytes]] = [
    (False, b"t\x00"),
    (True, b"t\x01"),
    (Int8(-2), b"b\xfe"),
    (UInt8(254), b"B\xfe"),
    (Int16(-2), b"s\xff\xfe"),
    (SpecInt16(-2), b"U\xff\xfe"),
    (UInt16(0xFFFE), b"u\xff\xfe"),
    (5, b"I\x00\x00\x00\x05"),
    (-2, b"I\xff\xff\xff\xfe"),
    (2**31 - 1, b"I\x7f\xff\xff\xff"),
    (-(2**31), b"I\x80\x00\x00\x00"),
    (UInt32(0xFFFFFFFE), b"i\xff\xff\xff\xfe"),
    (2**31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
    (-(2**63), b"l\x80\x00\x00\x00\x00\x00\x00\x00"),
    (Int64(5), b"l\x00\x00\x00\x00\x00\x00\x00\x05"),
    (SpecInt64(-1), b"L\xff\xff\xff\xff\xff\xff\xff\xff"),
    (Float32(1.5), b"f\x3f\xc0\x00\x00"),
    (1.5, b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    (Decimal("3.14"), b"D\x02\x00\x00\x01\x3a"),
    (Decimal("-0.5"), b"D\x01\xff\xff\xff\xfb"),
    ("hé", b"S\x00\x00\x00\x03h\xc3\xa9"),
    ("\udcff", b"S\x00\x00\x00\x01\xff"),
    (b"\x00\xff", b"x\x00\x00\x00\x02\x00\xff"),
    (Timestamp(1_700_000_000), b"T\x00\x00\x00\x00\x65\x53\xf1\x00"),
    (Timestamp(2**64 - 1), b"T\xff\xff\xff\xff\xff\xff\xff\xff"),
    (None, b"V"),
    ([], b"A\x00\x00\x00\x00"),
    ([1, None, "a"], b"A\x00\x00\x00\x0cI\x00\x00\x00\x01VS\x00\x00\x00\x01a"),
    ({}, b"F\x00\x00\x00\x00"),
    ({"a": {"b": [True]}}, b"F\x00\x00\x00\x10\x01aF\x00\x00\x00\x09\x01bA\x00\x00\x00\x02t\x01"),
]

PROPERTIES: list[tuple[Properties, bytes]] = [
    (Properties(), b"\x00\x00"),
    (Properties(delivery_mode=2), b"\x10\x00\x02"),
    (Properties(content_type="text/plain", delivery_mode=1), b"\x90\x00\x0atext/plain\x01"),
    (Properties(headers={"a": 1}), b"\x20\x00\x00\x00\x00\x07\x01aI\x00\x00\x00\x01"),
    (
        Properties(
            content_type="a",
            content_encoding="b",
            headers={},
            delivery_mode=2,
            priority=9,
            correlation_id="c",
            reply_to="d",
            expiration="60000",
            message_id="e",
            timestamp=1_700_000_000,
            type="f",
            user_id="g",
            app_id="h",
            cluster_id="i",
        ),
        b"\xff\xfc\x01a\x01b\x00\x00\x00\x00\x02\x09\x01c\x01d\x0560000\x01e"
        b"\x00\x00\x00\x00\x65\x53\xf1\x00\x01f\x01g\x01h\x01i",
    ),
]
