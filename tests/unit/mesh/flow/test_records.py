"""What nodes announce of themselves, and how long it counts."""

import pytest

from wherry.mesh.flow.records import RECORDS_MAX, KnownPeers, PeerRecord, decode, encode
from wherry.model.errors import InvalidInput


def record(node: str, version: int = 1) -> PeerRecord:
    return PeerRecord(node=node, url="http://10.0.0.7:7070", version=version)


def test_a_record_comes_back_as_it_was():
    leaf = PeerRecord(node="l", url="https://l.example:7070", role="leaf", hub="h", version=7)
    assert decode(encode(leaf)) == leaf


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"node":"a"}',
        b'{"node":"a b","url":"http://a:1"}',
        b'{"node":"a","url":"http://a:1","role":"king"}',
        b'{"node":"a","url":"ftp://a:1"}',
        b'{"node":"a","url":"http://u:p@a:1"}',
        b'{"node":"a","url":"http://a:1","version":-1}',
        b'{"node":"a","url":"http://a:1","hub":""}',
        b'"' + b"x" * 3_000 + b'"',
        b"[" * 3_000,
        b"\xff",
    ],
)
def test_what_any_client_may_have_published_is_checked(content: bytes):
    with pytest.raises(InvalidInput):
        decode(content)


@pytest.mark.rows("Q25")
def test_a_record_expires_unless_a_newer_one_comes():
    known = KnownPeers(100)
    known.learn(record("a"), 0)
    known.learn(record("b"), 0)
    known.learn(record("a", 2), 60)
    known.learn(record("b", 1), 60)  # the same again: read a second time, not renewed
    known.expire(100)
    assert [each.node for each in known.records] == ["a"]
    known.expire(160)
    assert known.records == []


def test_no_more_nodes_are_remembered_than_the_bound():
    known = KnownPeers(100)
    for number in range(RECORDS_MAX + 5):
        known.learn(record(f"n{number}"), 0)
    assert len(known.records) == RECORDS_MAX
    known.learn(record("n0", 2), 50)  # one that is known is renewed all the same
    known.expire(100)
    assert [each.node for each in known.records] == ["n0"]
