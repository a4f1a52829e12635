"""Sessions of STOMP in a virtual host that is deleted."""

from __future__ import annotations

from tests.amqp.tools import ask
from tests.stomp.raw import Raw
from tests.stomp.serving import done_in, running


def test_a_session_in_a_virtual_host_that_is_deleted_gets_an_error_and_ends(tmp_path):
    with running(tmp_path) as node:
        assert done_in(node, ask(node, "PUT vhosts/gone", {}))[0] == 201
        with Raw(node.stomp_port or 0) as raw, Raw(node.stomp_port or 0) as other:
            raw.connect(host="gone")
            other.connect()
            assert done_in(node, ask(node, "DELETE vhosts/gone"))[0] == 204
            error = raw.error()
            assert error.headers["message"] == "connection_forced"
            assert "vhost 'gone' is down" in error.body.decode()
            other.done("SEND", b"x", destination="/queue/q")
