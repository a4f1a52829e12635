"""Which clients are let in, what they may do there, and that TLS keeps others from reading."""

from __future__ import annotations

import shutil
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.stomp.raw import Raw
from tests.stomp.serving import done_in, running, until
from wherry.model.catalog.key import Right
from wherry.node import node as node_module
from wherry.node.config import TlsSection
from wherry.node.node import Node
from wherry.security.keys import make
from wherry.security.tls import Tls
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.sessions import Sessions

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"


def trusting(certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
    context.check_hostname = False
    if certificate is not None:
        context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{certificate}.key")
    return context


def renewed(place: Path, name: str) -> None:
    """Put new files in the place of the old, as a renewal does it."""
    for kind in (".pem", ".key"):
        fresh = place.with_suffix(".new")
        shutil.copy(CERTIFICATES / f"{name}{kind}", fresh)
        fresh.replace(place.with_suffix(kind))


@pytest.mark.rows("Q13")
def test_tls_on_a_port_of_its_own_with_certificates_that_are_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(node_module, "Tls", partial(Tls, poll_s=0.05))
    place = tmp_path / "server"
    renewed(place, "first")
    tls = TlsSection(certificate=str(place.with_suffix(".pem")), key=str(place.with_suffix(".key")))
    with running(tmp_path, tls=tls) as node:
        port = node.stomp_port or 0
        assert (node.stomp_url or "").startswith("stomp+ssl://")

        def shown() -> str:
            with Raw(port, tls=trusting()) as raw:
                raw.connect()
                assert isinstance(raw.socket, ssl.SSLSocket)
                subject: Any = (raw.socket.getpeercert() or {})["subject"]
                return str(dict(part[0] for part in subject)["commonName"])

        with Raw(port, tls=trusting()) as before:
            before.connect()
            before.done("SUBSCRIBE", destination="/queue/a", id="1")
            assert shown() == "first"
            renewed(place, "second")
            until(lambda: shown() == "second")
            before.send("SEND", b"still there", destination="/queue/a")
            assert before.bodies(1) == [b"still there"]
        with Raw(port) as plain:
            plain.send("CONNECT")
            assert plain.is_hung_up()


@pytest.mark.rows("Q13")
def test_a_certificate_is_a_name(tmp_path):
    tls = TlsSection(
        certificate=str(CERTIFICATES / "first.pem"),
        key=str(CERTIFICATES / "first.key"),
        client_ca=str(CERTIFICATES / "authority.pem"),
    )
    with running(tmp_path, tls=tls) as node, Raw(node.stomp_port or 0, tls=trusting("second")) as raw:
        raw.send("CONNECT", accept_version="1.2")
        raw.expect("CONNECTED")
        raw.done("SUBSCRIBE", destination="/queue/a", id="1")
        raw.send("SEND", b"1", destination="/queue/a", user_id="second")
        assert raw.expect("MESSAGE").headers["user-id"] == "second"


# ---------------------------------------------------------------------------------------------------------------- keys


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with running(tmp_path_factory.mktemp("locked"), keys=True) as node:
        yield node


def key_for(node: Node, name: str, *rights: Right) -> str:
    made = make(name, list(rights), now_ms=0)
    done_in(node, node.broker.put_key(made.key))
    return made.token


def entered(node: Node, token: str) -> Raw:
    raw = Raw(node.stomp_port or 0)
    raw.connect(login="anybody", passcode=token)
    return raw


@pytest.mark.parametrize("passcode", ["guest", "", "wk_12345678_" + "x" * 43])
def test_without_a_key_no_client_is_let_in(locked, passcode):
    with Raw(locked.stomp_port) as raw:
        raw.send("CONNECT", accept_version="1.2", login="guest", passcode=passcode)
        assert "guest" in raw.error().body.decode()


def test_rights_are_asked_for(locked):
    admin = key_for(locked, "admin", Right("admin", "*"))
    with entered(locked, admin) as raw:
        raw.done("SUBSCRIBE", destination="/queue/theirs", id="0", x_queue_type="classic")
        raw.done("SUBSCRIBE", destination="/queue/mine", id="1")


REFUSED = [
    (Right("publish", "mine"), "SEND", {"destination": "/queue/theirs"}, "theirs"),
    (Right("publish", "mine"), "SEND", {"destination": "/queue/not-there"}, "not-there"),
    (Right("publish", "mine"), "SUBSCRIBE", {"destination": "/queue/mine", "id": "1"}, "consume"),
    (Right("consume", "mine"), "SEND", {"destination": "/queue/mine"}, "publish"),
    (Right("consume", "mine"), "SUBSCRIBE", {"destination": "/queue/theirs", "id": "1"}, "theirs"),
    (Right("consume", "mine"), "SUBSCRIBE", {"destination": "/topic/a", "id": "1"}, "amq.topic"),
    (Right("consume", "mine"), "SEND", {"destination": "/topic/a"}, "amq.topic"),
    (
        Right("consume", "amq.topic"),
        "SUBSCRIBE",
        {"destination": "/topic/a", "id": "1", "x_queue_name": "theirs"},
        "theirs",
    ),
    (
        Right("consume", "amq.topic"),
        "SUBSCRIBE",
        {"destination": "/topic/a", "id": "1", "durable": "true", "auto_delete": "false"},
        "stomp-subscription-",
    ),
]


@pytest.mark.parametrize(("right", "command", "headers", "why"), REFUSED)
def test_what_a_key_has_no_right_to_is_refused(locked, right, command, headers, why):
    test_rights_are_asked_for(locked)
    with entered(locked, key_for(locked, "some", right)) as raw:
        raw.send(command, **headers)
        found = raw.error()
        assert found.headers["message"] == "access_refused"
        assert why in found.body.decode()


def test_what_a_key_has_the_right_to_is_done(locked):
    test_rights_are_asked_for(locked)
    token = key_for(locked, "worker", Right("consume", "amq.topic"), Right("publish", "amq.topic"))
    with entered(locked, token) as raw:
        raw.done("SUBSCRIBE", destination="/topic/a", id="1")
        raw.send("SEND", b"1", destination="/topic/a", user_id="worker")
        assert raw.bodies(1) == [b"1"]


def test_a_key_that_is_deleted_ends_its_sessions(locked):
    made = make("passing", [Right("consume", "mine")], now_ms=0)
    done_in(locked, locked.broker.put_key(made.key))
    with entered(locked, made.token) as raw:
        done_in(locked, locked.broker.delete_key(made.key.id))
        assert raw.error().headers["message"] == "key no longer good"


@pytest.mark.rows("Q3")
@pytest.mark.parametrize(
    ("destination", "kept", "lost"),
    [
        ("/queue/mine", Right("consume", "other"), "mine"),
        ("/topic/a", Right("consume", "mine"), "amq.topic"),
    ],
)
def test_a_key_that_loses_a_right_loses_its_subscriptions(locked, destination, kept, lost):
    test_rights_are_asked_for(locked)
    made = make("changing", [Right("consume", "mine"), Right("consume", "amq.topic")], now_ms=0)
    done_in(locked, locked.broker.put_key(made.key))
    with entered(locked, made.token) as raw, entered(locked, made.token) as other:
        raw.done("SUBSCRIBE", destination=destination, id="1")
        done_in(locked, locked.broker.put_key(msgspec.structs.replace(made.key, rights=(kept,))))
        found = raw.error()
        assert found.headers["message"] == "key no longer good"
        assert lost in found.body.decode()
        other.done("BEGIN", transaction="1")  # this session has lost no right that it uses


LASTING = {"destination": "/topic/a", "id": "1", "durable": "true", "auto_delete": "false"}


@pytest.mark.parametrize(
    ("key", "pattern", "refused"),
    [
        ("mary", "stomp-subscription-mary:*", False),
        ("mary/ann", "stomp-subscription-mary%2Fann:*", False),
        ("mary-ann", "stomp-subscription-mary:*", True),
        ("mary:ann", "stomp-subscription-mary:*", True),
    ],
)
def test_durable_subscriptions_are_given_by_the_name_of_a_key(locked, key, pattern, refused):
    token = key_for(locked, key, Right("consume", "amq.topic"), Right("admin", pattern))
    with entered(locked, token) as raw:
        if refused:
            raw.send("SUBSCRIBE", **LASTING)
            assert raw.error().headers["message"] == "access_refused"
        else:
            raw.done("SUBSCRIBE", **LASTING)
            raw.done("UNSUBSCRIBE", **LASTING)


def test_a_key_whose_name_is_too_long_for_a_queue_gets_an_error(locked):
    with entered(locked, key_for(locked, "x" * 250, Right("admin", "*"))) as raw:
        raw.send("SUBSCRIBE", **LASTING)
        assert "at most 203 bytes" in raw.error().body.decode()


def test_a_broker_that_closes_sends_an_error_to_new_clients(locked):
    class Recorder:
        name = "tcp"
        is_stopped = False
        written = b""

        def write(self, data: bytes) -> None:
            self.written += data

        def close(self) -> None:
            pass

        def waiting_bytes(self) -> int:
            return 0

        unread_bytes = waiting_bytes

    async def late(sessions: Sessions, transport: Recorder) -> None:
        await sessions.close()
        Session(sessions, transport, peer="late")

    assert locked.stomp_sessions is not None
    transport = Recorder()
    done_in(locked, late(Sessions(locked.stomp_sessions.queueing), transport))
    assert b"connection_forced" in transport.written
    assert b"too many" not in transport.written
