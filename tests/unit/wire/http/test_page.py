"""docs/http.md names the right of every call as the code has it."""

import re
from pathlib import Path

from tests.unit.wire.http.test_openapi import ENDPOINTS

PAGE = (Path(__file__).parents[4] / "docs/http.md").read_text(encoding="utf-8")
LISTED = re.compile(r"^\* `?(?P<right>none|publish|consume|admin)`?: (?P<calls>.*?)[;.]$", re.MULTILINE | re.DOTALL)
CALLS = re.compile(r"(?P<methods>(?:`[A-Z]+`, )*)`(?P<last>[A-Z]+) (?P<path>[/…][^`]*)`")
SUBSCRIPTION = "/v1/topics/{topic}/subscriptions/{subscription}"


def test_the_page_has_the_right_of_every_call():
    listed = {
        (right["right"], f"{method} {call['path'].replace('…', SUBSCRIPTION)}")
        for right in LISTED.finditer(PAGE)
        for call in CALLS.finditer(right["calls"])
        for method in (*re.findall("[A-Z]+", call["methods"]), call["last"])
    }
    assert sorted(listed) == sorted((endpoint.right, endpoint.name) for endpoint in ENDPOINTS)
