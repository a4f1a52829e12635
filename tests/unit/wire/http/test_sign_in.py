"""What the policy of the console lets the page connect to."""

from __future__ import annotations

import pytest

from wherry.wire.http.pages.console import PAGE, page
from wherry.wire.http.pages.sign_in import connectable


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("https://id.example/realms/shop/token", "https://id.example/realms/shop/token"),
        ("https://id.example:8443/token?tenant=x", "https://id.example:8443/token"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
        ("https://id.example/a;script-src,*'x\"/token", "https://id.example/a%3Bscript-src%2C*%27x%22/token"),
        ("https://id.example/o/token/", "https://id.example/o/token/"),  # and what is below, by the rules of policies
        ("https://[::1]/token", ""),
        ("https://a;b.example/token", ""),
        ("https://*.example/token", ""),
        ("https://id.example:port/token", ""),
        ("data:text/plain,x", ""),
        ("", ""),
    ],
)
def test_an_endpoint_is_named_exactly_or_not_at_all(url, named):
    assert connectable(url) == named


def test_only_the_page_that_signs_in_may_connect_elsewhere():
    policy = dict(page(PAGE, connect="https://id.example/token").headers)["Content-Security-Policy"]
    assert "connect-src 'self' https://id.example/token; base-uri" in policy
    assert "connect-src 'self'; base-uri" in dict(page(PAGE).headers)["Content-Security-Policy"]
