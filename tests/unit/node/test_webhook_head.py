"""The head of the calls that a node makes."""

from wherry.node.webhooks.sender import _head
from wherry.node.webhooks.targets import Target


def test_every_call_has_the_headers_of_all_calls_and_its_own():
    head = _head(Target.of("http://a.example:8080/hook?x=1"), {"Content-Type": "application/json"}, 12)
    first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    assert first == "POST /hook?x=1 HTTP/1.1"
    assert sorted(lines) == [
        "Content-Length: 12",
        "Content-Type: application/json",
        "Host: a.example:8080",
        "User-Agent: wherry",
    ]
