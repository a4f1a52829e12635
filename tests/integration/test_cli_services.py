"""`wherry service …`: the examples of `--help` run as printed, against a process that provides."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from tests.integration.services import Order
from wherry.cli.frame import EXAMPLES
from wherry.cli.main import app
from wherry.service.service import Service
from wherry.service.sync import peer_sync


@pytest.fixture
def registry(monkeypatch):
    billing = Service("billing")

    @billing.method(max_concurrent=8)
    async def total(order: Order) -> int:
        return sum(order.items)

    with peer_sync(provides=[billing]) as provider:
        monkeypatch.setenv("WHERRY_REGISTRY", "static://" + provider.url.partition("://")[2])
        yield


def ran(*words: str, code: int = 0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done


def rows(*words: str):
    return [json.loads(line) for line in ran("--json", *words).stdout.splitlines()]


@pytest.mark.rows("P2")
def test_examples_run_as_printed(registry):
    examples = [line for path, lines in EXAMPLES.items() if path.startswith("service ") for line in lines]
    assert len(examples) >= 8
    for example in examples:
        ran(*shlex.split(example)[1:])


@pytest.mark.rows("P2")
def test_a_service_is_shown_and_controlled(registry):
    assert [(row["service"], row["url"].startswith("http://127.0.0.1:")) for row in rows("service", "list")] == [
        ("billing", True)
    ]
    assert ran("service", "call", "billing.total", '{"items": [1, 2]}').stdout == "3\n"
    (row,) = rows("service", "show", "billing")
    assert (row["name"], row["state"], row["answered"], row["max_concurrent"]) == ("total", "open", 1, 8)
    (row,) = rows("service", "limit", "billing", "--method", "total", "--max-concurrent", "4")
    assert row["max_concurrent"] == 4
    (row,) = rows("service", "pause", "billing")
    assert row["state"] == "paused"
    done = ran("service", "call", "billing.total", '{"items": []}', code=1)
    assert "refused (paused)" in done.stderr
    (row,) = rows("service", "resume", "billing")
    assert row["state"] == "open"
    (row,) = rows("service", "drain", "billing")
    assert row["state"] == "draining"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("service", "show", "none"), "no service named 'none'"),
        (("service", "show", "billing", "--instance", "none"), "no instance named"),
        (("service", "call", "billing.total", "{"), "argument: got '{'"),
        (("service", "call", "billing.total", '{"items": ["x"]}'), "items[0]"),
        (("service", "limit", "billing"), "max_concurrent"),
        (("service", "list", "--registry", "http://a"), "registry: got"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(registry, words, part):
    done = ran(*words, code=1)
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1
