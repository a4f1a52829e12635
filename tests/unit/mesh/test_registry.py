"""Instances and the roster of a registry."""

from __future__ import annotations

import pytest

from wherry.mesh.instance import INSTANCE_BYTES_MAX, Instance, decode, encode
from wherry.mesh.registry import Roster
from wherry.model.errors import InvalidInput


def instance(name: str = "a", version: int = 0, **more: object) -> Instance:
    return Instance(service="billing", id=name, url="http://10.0.0.7:7080", version=version, **more)  # type: ignore[arg-type]


def test_an_instance_is_its_bytes_and_back():
    known = instance(methods=("total", "refund"), labels={"zone": "eu-1"}, version=7)
    assert decode(encode(known)) == known


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"", "instance"),
        (b"{", "instance"),
        (b'{"service":"billing","id":"a"}', "instance"),
        (b'{"service":"","id":"a","url":"http://h:1"}', "service"),
        (b'{"service":"b","id":"a b","url":"http://h:1"}', "id"),
        (b'{"service":"b","id":"a","url":"ftp://h:1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://h"}', "url"),
        (b'{"service":"b","id":"a","url":"http://h:99999"}', "url"),
        (b'{"service":"b","id":"a","url":"http://[::1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://h:1","version":-1}', "version"),
        (b'{"service":"b","id":"a","url":"http://h:1","methods":[""]}', "methods"),
        (b'{"service":"b","id":"a","url":"http://h:1\\n"}', "url"),
        (b'{"service":"b","id":"a","url":" http://h:1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://a b:1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://\\u0000h:1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://\\u0661:1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://user:secret@h:1"}', "url"),
        (b'{"service":"b","id":"a","url":"http://h:1/path"}', "url"),
        (b'{"service":"b","id":"a","url":"http://h:1?query"}', "url"),
        (b'{"service":"b","id":"\xff","url":"http://h:1"}', "instance"),
        (b'{"service":"b","id":"a","url":"http://h:1","later":' + b"[" * 8_000, "instance"),
        (b" " * (INSTANCE_BYTES_MAX + 1), "instance"),
    ],
)
def test_bytes_that_are_no_instance_name_the_field(content, field):
    with pytest.raises(InvalidInput) as refused:
        decode(content)
    assert refused.value.field == field


def test_the_bytes_of_an_instance_stay_as_they_are():
    """Hold the bytes as they are: processes of several versions read the same registry."""
    golden = (
        b'{"service":"billing","id":"a","url":"http://10.0.0.7:7080","version":7,'
        b'"methods":["total","refund"],"labels":{"zone":"eu-1"}}'
    )
    known = instance(methods=("total", "refund"), labels={"zone": "eu-1"}, version=7)
    assert encode(known) == golden
    assert decode(golden) == known
    assert encode(instance()) == b'{"service":"billing","id":"a","url":"http://10.0.0.7:7080"}'
    assert decode(golden[:-1] + b',"later":{"x":[1]}}') == known, "fields of a later version are ignored"


def test_too_many_methods_and_too_many_bytes_are_refused():
    with pytest.raises(InvalidInput, match="methods"):
        instance(methods=tuple(map(str, range(257)))).checked()
    with pytest.raises(InvalidInput, match="bytes"):
        encode(instance(methods=tuple(f"{n:0120}" for n in range(256))))


def test_a_roster_reports_changes_only():
    roster = Roster()
    changed: list[str] = []
    stop = roster.watch(changed.append)
    roster.replace("billing", [instance("b"), instance("a")])
    assert [each.id for each in roster.of("billing")] == ["a", "b"]
    known = roster.of("billing")
    roster.replace("billing", [instance("a"), instance("b")])
    assert roster.of("billing") is known
    assert changed == ["billing"]
    roster.replace("billing", [])
    roster.replace("billing", [])
    assert changed == ["billing"] * 2
    assert not roster.services
    stop()
    roster.replace("billing", [instance()])
    assert len(changed) == 2


def test_the_same_function_may_watch_twice():
    roster = Roster()
    changed: list[str] = []
    stop, _ = roster.watch(changed.append), roster.watch(changed.append)
    stop()
    stop()
    roster.replace("billing", [instance()])
    assert changed == ["billing"]


def test_of_two_records_of_an_instance_the_newer_counts():
    roster = Roster()
    roster.replace("billing", [instance("a", 3), instance("a", 2)])
    assert [each.version for each in roster.of("billing")] == [3]


def test_services_that_are_not_named_have_no_instance():
    roster = Roster()
    roster.replace("billing", [instance()])
    roster.replace_all({"stock": [Instance(service="stock", id="s", url="http://h:1")]})
    assert list(roster.services) == ["stock"]


def test_instances_that_can_be_read_once_replace_all():
    roster = Roster()
    for _ in range(2):
        roster.replace_all({"billing": iter([instance()])})
        assert [each.id for each in roster.of("billing")] == ["a"]


def test_a_watcher_that_raises_is_logged_and_stops_nothing(caplog):
    roster = Roster()
    changed: list[str] = []

    def bad(service: str) -> None:
        raise KeyError(service)

    roster.watch(bad)
    roster.watch(changed.append)
    roster.replace("billing", [instance()])
    assert changed == ["billing"]
    assert [(each.name, each.levelname) for each in caplog.records] == [("wherry.mesh", "ERROR")]
