"""schemathesis against a node that serves: every call of the document with good and bad values, and with all checks.

Twice: with names that it makes up, where what it creates is found again by what it does next; and with names of things
that are there, so that calls get past their 404.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from tests.integration.served import Served, served
from wherry.wire.http.api.terms import VISIBLE

SEED = 20_261_115
TOPIC, SUBSCRIPTION = "orders", "workers"

CONFIG: dict[str, Any] = {
    "seed": SEED,
    "generation": {"mode": "all", "deterministic": True, "database": "none", "max-examples": 4},
    "continue-on-failure": True,
    "request-timeout": 20,
    "warnings": False,
    "checks": {
        "enabled": True,
        # What is there decides too: a version that is not the newest, a stage that was committed, a body above a bound.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "410", "412", "429"]},
        "negative_data_rejection": {
            "expected-statuses": ["400", "404", "405", "406", "409", "410", "412", "413", "415", "429", "431"]
        },
    },
    "operations": [
        # A stream without an end is no request to try out five hundred times: tests/behaviour/test_http_consume.py.
        {"include-operation-id": "events", "enabled": False},
        # Nor are a WebSocket and the native wire, which begin with headers that this client does not send:
        # tests/stomp/test_websocket.py, tests/integration/test_native.py.
        {"include-operation-id": ["websocket", "websocket_at_stomp", "open_native_wire"], "enabled": False},
        # A call of the native wire alone: tests/oidc.
        {"include-operation-id": "renew_native_key", "enabled": False},
        # Whether these values are good no schema of each can express: producer and sequence that only
        # come together, what a change is a change of. Here alone 400 may be the answer to what looks good.
        {
            "include-operation-id": ["publish", "stage", "put_topic", "patch_topic"],
            "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404", "409", "410", "429"]}},
        },
    ],
}

KNOWN_NAMES = {
    "parameters": {"path.topic": TOPIC, "path.subscription": SUBSCRIPTION, "query.wait_ms": 0},
    "operations": [
        *CONFIG["operations"],
        {"include-operation-id": ["delete_topic", "delete_subscription"], "enabled": False},
    ],
}

PHASES: dict[bool, dict[str, Any]] = {
    True: {
        "stateful": {"enabled": False},
        "fuzzing": {"enabled": False},
        "coverage": {"unexpected-methods": ["TRACE"]},
    },
    False: {"coverage": {"enabled": False}, "stateful": {"generation": {"max-examples": 5}}},
}
"""The short form, by whether names are known: every value of every field with names that are there, and scenarios of
several steps with names that are made up. The long form does both with both, and each method that a path lacks."""


schemathesis.openapi.format(
    "graphic", st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=256)
)
schemathesis.openapi.format(
    "webhook-url", st.from_regex(r"https?://[a-z]{1,9}\.invalid(/[!-\"$-~]{0,9})?", fullmatch=True)
)


def without_tuples(schema: Any) -> Any:
    """Return the document without `prefixItems`, which schemathesis 4.32 turns into a form that it then refuses."""
    if isinstance(schema, dict):
        kept = {name: without_tuples(each) for name, each in schema.items() if name != "prefixItems"}
        return kept if "prefixItems" not in schema else {**kept, "items": {}}
    return [without_tuples(each) for each in schema] if isinstance(schema, list) else schema


async def fill(node: Served) -> None:
    broker = node.node.broker
    await broker.create_topic(TOPIC, partitions=2)
    await broker.subscribe(TOPIC, SUBSCRIPTION)
    await broker.publish(TOPIC, [b"one", b"two", b"\xff"])


@pytest.mark.rows("D10", "G4")
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.long)], ids=["short", "long"])
@pytest.mark.parametrize("known", [False, True], ids=["made-up names", "known names"])
def test_the_node_does_what_its_document_describes(
    known: bool, short: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR)
    with served(tmp_path / "node") as node:
        node.run(fill(node))
        with urlopen(f"{node.node.url}/openapi.json") as answer:
            document = without_tuples(json.load(answer))
        config = {**CONFIG, "base-url": node.node.url, **(KNOWN_NAMES if known else {})}
        config["phases"] = PHASES[known] if short else {"stateful": {"generation": {"max-examples": 5}}}
        schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))
        wrong: list[str] = []
        seen: Counter[int] = Counter()
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError | events.FatalError):
                wrong.append(repr(event))
            elif isinstance(event, events.ScenarioFinished):
                wrong += failures(event)
                answers = [each.response for each in event.recorder.interactions.values()]
                seen.update(each.status_code for each in answers if each is not None)
        assert node.node.server.requests == 0
    print(f"answers by status: {dict(sorted(seen.items()))}")
    assert not wrong, "\n\n".join(wrong[:10])
    assert not [record for record in caplog.records if record.name.startswith("wherry")]
    if known or not short:
        assert seen.keys() >= {200, 201, 204, 400, 404, 405, 409, 415}
        assert sum(seen.values()) > 2_000


def is_bad(case: Any) -> bool:
    """Return whether a name in the path is one that the document does not allow: steps of a scenario hand on anything.

    Or a cap on delays is below the first of them: a schema cannot express a relation of two fields.
    """
    names = (case.path_parameters or {}).values()
    retry = case.body.get("retry") if isinstance(case.body, dict) else None
    crossed = isinstance(retry, dict) and retry.get("cap_ms", 600_000) < retry.get("first_ms", 1_000)
    return crossed or any(re.search(VISIBLE, unquote(str(each))) is None for each in names)


def failures(event: events.ScenarioFinished) -> list[str]:
    found = []
    for case_id, checks in event.recorder.checks.items():
        for check in checks:
            case = event.recorder.cases[case_id].value
            if check.failure_info is not None and not (check.name == "positive_data_acceptance" and is_bad(case)):
                curl = case.as_curl_command()
                found.append(f"{check.name}: {check.failure_info.failure.message}\n{curl[:500]}")
    return found
