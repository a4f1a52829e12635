"""The C client against a real node: the cases that every client must pass, under sanitizers and valgrind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.c.compiling import CLIENT, PLAIN, SANITIZED, TESTS, TLS, TLS_LIBRARIES, compiled, need_openssl, run, valgrind
from tests.integration.test_node import CERTIFICATES, Running

SOURCES = [TESTS / "cases.c", CLIENT / "wherry.c"]
CASES = [
    *("publish_and_confirm", "flow_is_answered", "refused_with_the_field", "many_under_way", "quiet_and_forgotten"),
    *("partitions_and_places", "push_and_ack", "every_field", "nack_and_retry", "dead_letters", "renewed_leases"),
    *("credit_is_honoured", "released_on_goodbye", "without_acks", "a_large_message", "many_streams"),
    *("a_stream_that_the_broker_ends", "held_bytes_are_bounded", "calls", "a_loop_of_its_own", "heartbeats"),
]
WATCHED = ["publish_and_confirm", "push_and_ack", "calls"]
"""Cases that run under valgrind every time; the others in the long form."""


@pytest.fixture(scope="module")
def sanitized() -> Path:
    return compiled("cases-sanitized", SOURCES, SANITIZED)


@pytest.mark.rows("Q17")
@pytest.mark.parametrize("case", CASES)
def test_a_case_of_every_client(sanitized, url, topic, case):
    run(sanitized, case, url, "-", topic)


@pytest.mark.rows("Q17")
@pytest.mark.parametrize(
    "case", [case if case in WATCHED else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_valgrind_finds_nothing(url, topic, case):
    valgrind(compiled("cases", SOURCES, PLAIN), case, url, "-", topic)


def test_an_arrow_stream_is_published_as_it_is(sanitized, url, topic, tmp_path):
    batch = pa.record_batch({"payload": pa.array([b"%d" % number for number in range(300)])})
    with pa.ipc.new_stream(tmp_path / "stream", batch.schema) as writer:
        writer.write_batch(batch)
    run(sanitized, "an_arrow_stream", url, tmp_path / "stream", topic)


@pytest.mark.rows("Q17")
def test_rights_are_those_of_the_key(sanitized, tmp_path):
    with Running(tmp_path / "data", "--keys", "on") as node:
        admin = {"Authorization": f"Bearer {(tmp_path / 'data/admin.key').read_text().strip()}"}
        for name in ("jobs", "other"):
            assert node.ask("PUT", f"/v1/topics/{name}", **admin)[0] == 201
        made = '{"name":"ann","rights":[{"verb":"publish","topics":"jobs"}]}'
        status, text = node.ask("POST", "/v1/keys", made, **admin, **{"Content-Type": "application/json"})
        assert status == 201
        run(sanitized, "rights", node.url, msgspec.json.decode(text)["token"], "jobs")


@pytest.mark.parametrize("case", ["publish_and_confirm", "push_and_ack", "a_loop_of_its_own"])
def test_the_unix_socket_serves_the_c_client_too(sanitized, tmp_path, case):
    path = tmp_path / "w.sock"
    with Running(tmp_path / "data", "--unix-socket", str(path)):
        run(sanitized, case, f"unix://{path}")


@pytest.fixture(scope="module")
def over_tls() -> Path:
    need_openssl()
    sources = [TESTS / "tls.c", CLIENT / "wherry.c"]
    return compiled("tls", sources, (*SANITIZED, *TLS), TLS_LIBRARIES)


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory: pytest.TempPathFactory):
    files = [str(CERTIFICATES / name) for name in ("first.pem", "first.key")]
    data = tmp_path_factory.mktemp("tls") / "data"
    with Running(data, "--tls-certificate", files[0], "--tls-key", files[1]) as node:
        yield node.url


def test_tls_is_verified_and_large_messages_pass(over_tls, tls_url):
    run(over_tls, tls_url, CERTIFICATES / "authority.pem")


def test_without_tls_in_the_build_https_is_refused(sanitized):
    printed = run(sanitized, "a_bad_server", "https://127.0.0.1:1").split("|")
    assert printed[:3] == ["-2", "invalid-input", "url"]
    assert "WHERRY_TLS=1" in printed[4]


def test_memory_that_is_missing_is_an_error_and_nothing_leaks(url, topic):
    program = compiled("memory", [TESTS / "memory.c"], SANITIZED)
    tried = int(run(program, url, topic))
    assert tried > 10
