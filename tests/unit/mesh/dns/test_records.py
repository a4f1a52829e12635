"""Records of DNS as instances, and when they are read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.mesh.dns.records import (
    INSTANCES_MAX,
    SrvRecord,
    at_addresses,
    check_periods,
    merged,
    period_ms,
    questions,
    retry_ms,
)
from wherry.model.errors import InvalidInput

TARGETS = {"a.test": ["10.0.0.1", "::1"], "b.test": ["10.0.0.2"], "none.test": []}


def test_a_host_has_an_instance_for_each_address():
    found = at_addresses("billing", "peers.test", 7080, ["10.0.0.2", "::1", "10.0.0.2"], "http")
    assert [(each.id, each.url, each.labels) for each in found] == [
        ("10.0.0.2:7080", "http://10.0.0.2:7080", {"host": "peers.test"}),
        ("[::1]:7080", "http://[::1]:7080", {"host": "peers.test"}),
    ]
    many = at_addresses(
        "b", "p.test", 1, (f"10.0.{each >> 8}.{each & 255}" for each in range(INSTANCES_MAX + 9)), "http"
    )
    assert len(many) == INSTANCES_MAX


def test_the_preferred_record_counts_where_two_lead_to_one_place():
    records = [SrvRecord(20, 9, 80, "a.test"), SrvRecord(10, 1, 80, "a.test"), SrvRecord(10, 7, 80, "a.test")]
    found = merged("billing", records, TARGETS, "http")
    assert {each.labels["priority"] + "/" + each.labels["weight"] for each in found} == {"10/7"}


srv_records = st.builds(
    SrvRecord,
    st.integers(0, 65_535),
    st.integers(0, 65_535),
    st.integers(0, 65_535),
    st.sampled_from([*TARGETS, "unknown.test"]),
)


@given(st.lists(srv_records, max_size=30), st.randoms(use_true_random=False))
def test_merged_records_are_every_place_once_whatever_their_order(records, chance):
    found = merged("billing", records, TARGETS, "https")
    expected = {(address, each.port) for each in records if each.port for address in TARGETS.get(each.target, ())}
    assert {each.url for each in found} == {
        f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}" for address, port in expected
    }
    assert len(found) == len({each.id for each in found}) == len(expected)
    shuffled = list(records)
    chance.shuffle(shuffled)
    assert merged("billing", shuffled, TARGETS, "https") == found


def test_instances_of_srv_records_are_bounded_and_the_preferred_ones_stay():
    records = [SrvRecord(each, 0, 1 + each, "b.test") for each in reversed(range(INSTANCES_MAX + 5))]
    found = merged("billing", records, TARGETS, "http")
    assert len(found) == INSTANCES_MAX
    assert found[0].labels["priority"] == "0"
    assert found[-1].labels["priority"] == str(INSTANCES_MAX - 1)


@given(st.lists(st.integers(0, 2**31 - 1)), st.integers(100, 1_000), st.integers(1_000, 3_600_000))
def test_the_period_keeps_its_bounds(ttls, least, most):
    assert least <= period_ms(ttls, least, most) <= most


@given(st.integers(1, 10_000), st.integers(100, 1_000), st.integers(1_000, 3_600_000))
def test_retries_come_later_and_later_within_bounds(failures, least, most):
    assert least <= retry_ms(failures, least, most) <= retry_ms(failures + 1, least, most) <= most


def test_questions_follow_from_name_port_and_services():
    assert questions("a.test", 80, []) == {"*": "a.test"}
    assert questions("a.test", 80, ["x", "y"]) == {"x": "a.test", "y": "a.test"}
    assert questions("a.test", None, ["x", "y"]) == {"x": "_x._tcp.a.test", "y": "_y._tcp.a.test"}
    assert questions("_x._TCP.a.test", None, []) == {"x": "_x._TCP.a.test"}


@pytest.mark.parametrize(
    ("name", "port", "services", "field"),
    [
        ("", 80, [], "name"),
        ("a..b", 80, [], "name"),
        ("a b", 80, [], "name"),
        ("a" * 64, 80, [], "name"),
        (".".join(["a" * 60] * 5), 80, [], "name"),
        ("a.test", None, [], "name"),
        ("_x._udp.a.test", None, [], "name"),
        ("_._tcp.a.test", None, [], "services"),
        ("a.test", None, ["x.y"], "services"),
        ("a.test", None, ["x" * 63], "services"),
        (".".join(["a" * 60] * 4), None, ["x" * 20], "services"),
        ("a.test", 80, ["*"], "services"),
        ("a.test", 80, [f"s{each}" for each in range(101)], "services"),
    ],
)
def test_a_question_that_cannot_be_asked_names_the_field(name, port, services, field):
    with pytest.raises(InvalidInput) as refused:
        questions(name, port, services)
    assert refused.value.field == field


def test_bounds_of_the_period_are_in_order():
    check_periods(5, 5)
    with pytest.raises(InvalidInput):
        check_periods(6, 5)
