"""What the configuration allows for the sign-in at the console."""

from __future__ import annotations

import msgspec
import pytest

from wherry.model.errors import InvalidInput
from wherry.node.config import SCOPES_MAX, OidcSection

GOOD = {"issuer": "https://id.example/realms/shop", "audiences": ["wherry"], "console_client": "console"}


def section(**more: object) -> OidcSection:
    return msgspec.convert(GOOD | more, OidcSection)


def test_a_client_with_scopes_is_allowed():
    section(console_scopes=["orders", "api://wherry/.default"], parties=["shop", "console"]).check("auto")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"issuer": None, "audiences": []}, "oidc.issuer"),
        ({"issuer": None, "audiences": [], "console_client": None, "console_scopes": ["a"]}, "oidc.issuer"),
        ({"console_client": None, "console_scopes": ["orders"]}, "oidc.console_client"),
        ({"console_client": ""}, "oidc.console_client"),
        ({"console_client": "a console"}, "oidc.console_client"),
        ({"console_client": "c" * 513}, "oidc.console_client"),
        ({"parties": ["shop"]}, "oidc.console_client"),
        ({"console_scopes": ["s"] * (SCOPES_MAX + 1)}, "oidc.console_scopes"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(more, field):
    with pytest.raises(InvalidInput) as refused:
        section(**more).check("auto")
    assert refused.value.field == field


@pytest.mark.parametrize("scope", ["", "two scopes", 'a"b', "a\\b", "line\n", "é", "s" * 257])
def test_a_scope_is_visible_ascii_without_quotes(scope):
    with pytest.raises(msgspec.ValidationError):
        section(console_scopes=[scope])
