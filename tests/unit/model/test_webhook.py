"""What a webhook may be, and that its secret stays one."""

import msgspec
import pytest

from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.webhook import Webhook
from wherry.model.errors import InvalidInput

SECRET = "a secret of 26 characters."
GOOD = Webhook(url="https://example.org/hook?a=b", secret=SECRET)


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://a.b:1/c?d=e",
        "http://[::1]:80/",
        "http://1.2.3.4",
        "HTTPS://EXAMPLE.ORG/",
        "http://a_b.c-d./",
    ],
)
def test_urls_that_can_be_posted_to(url):
    assert msgspec.structs.replace(GOOD, url=url).checked().url == url


@pytest.mark.parametrize(
    "url",
    [
        *("", "a", "//a", "ftp://a", "file:///etc/passwd", "http://", "http:///x", "http://:80/", "http://a:0/"),
        *("http://a:65536/", "http://a:b/", "http://u:p@a/", "http://@a/", "http://a/#f", "http://[::1/", "http://ä/"),
        *("http://a/ b", "http://a/\r\nX: y", "http://a\t/", "http://a/" + "x" * 2048, 5, None),
        *("http://a..b/", "http://.a/", "http://./", f"http://{'x' * 64}/", f"http://{'x.' * 127}x/", "http://a;b/"),
    ],
)
def test_urls_that_cannot(url):
    with pytest.raises(InvalidInput, match=r"webhook\.url"):
        msgspec.structs.replace(GOOD, url=url).checked()


@pytest.mark.parametrize(
    ("field", "low", "high"), [("batch", 1, 1_000), ("timeout_ms", 100, 60_000), ("remove_after", 1, 1_000)]
)
def test_numbers_have_two_edges(field, low, high):
    for value in (low, high):
        msgspec.structs.replace(GOOD, **{field: value}).checked()
    for value in (low - 1, high + 1, True, 1.5):
        with pytest.raises(InvalidInput, match=f"webhook.{field}"):
            msgspec.structs.replace(GOOD, **{field: value}).checked()


@pytest.mark.parametrize("secret", ["x" * 15, "x" * 257, 5, "\ud800" * 20])
def test_a_secret_that_is_refused_is_not_repeated(secret):
    with pytest.raises(InvalidInput, match=r"webhook\.secret") as refused:
        msgspec.structs.replace(GOOD, secret=secret).checked()
    assert str(secret) not in str(refused.value).partition("allowed")[0].replace("15 ", "").replace("257 ", "")


def test_a_secret_is_written_and_never_printed():
    subscription = Subscription(topic="t", name="s", webhook=GOOD)
    assert SECRET not in repr(subscription)
    assert SECRET not in str(GOOD.__rich_repr__())
    assert msgspec.json.decode(msgspec.json.encode(subscription), type=Subscription).webhook == GOOD
    with pytest.raises(InvalidInput):
        GOOD.masked().checked()


def test_a_subscription_without_one_is_written_as_ever():
    assert msgspec.json.encode(Subscription(topic="t", name="s")) == b'{"topic":"t","name":"s"}'
