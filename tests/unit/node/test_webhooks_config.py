"""The section [webhooks]: networks are read, secrets are not shown."""

import pytest

from wherry.model.errors import InvalidInput
from wherry.node.sources import resolve

SECRET = "a secret of 26 characters."


def test_networks_come_as_a_list_or_with_commas():
    file = '[webhooks]\nallow = ["10.0.0.0/8", "::1"]\n'
    assert resolve(file, "wherry.toml", {}, {}).config.webhooks.allow == ("10.0.0.0/8", "::1")
    environment = {"WHERRY_WEBHOOKS_ALLOW": "10.0.0.0/8, ::1"}
    assert resolve("", "wherry.toml", environment, {}).config.webhooks.allow == ("10.0.0.0/8", "::1")
    with pytest.raises(InvalidInput, match=r"webhooks\.allow"):
        resolve("", "wherry.toml", {"WHERRY_WEBHOOKS_ALLOW": "ten"}, {})


def test_a_secret_is_used_and_never_shown():
    effective = resolve("", "wherry.toml", {"WHERRY_WEBHOOKS_SECRET": SECRET}, {})
    assert effective.config.webhooks.secret == SECRET
    shown = {setting.name: setting for setting in effective.settings()}["webhooks.secret"]
    assert (shown.value, shown.source) == ("…", "environment WHERRY_WEBHOOKS_SECRET")


@pytest.mark.parametrize("given", ['"too short, truly"'[:12] + '"', "1234567890123456"])
def test_a_secret_that_does_not_fit_is_not_repeated(given):
    with pytest.raises(InvalidInput, match=r"webhooks\.secret") as refused:
        resolve(f"[webhooks]\nsecret = {given}\n", "wherry.toml", {}, {})
    assert given.strip('"') not in str(refused.value)
