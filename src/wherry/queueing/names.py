"""Names: a queue of a virtual host is a topic, an exchange is a route.

In the virtual host `/` they have the same names, so that other wires use them as they are. Elsewhere, and where a name
would look like one from elsewhere, the virtual host comes before it: queue `jobs` of `staging` is the topic
`@staging/jobs`.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

ROOT = "/"
"""The virtual host that every broker has."""

SUBSCRIPTION = "amqp"
"""The subscription that all consumers of a queue share. The value is in journals, so it stays, though STOMP uses it
too."""

LABEL = "amqp"
"""The label in which topics, routes and bindings keep what only this layer reads. Its value is in journals too."""

REPLY_TO = "amq.rabbitmq.reply-to"
"""The pseudo-queue of direct replies, which are sent straight to the channel that asked."""

SHORT_BYTES_MAX = 255
"""The length of a short string of AMQP: no name or routing key is longer."""

_MARK = "@"


def full_name(host: str, name: str) -> str:
    """Return the topic of a queue, or the route of an exchange.

    Examples
    --------
    >>> full_name("/", "jobs"), full_name("staging", "jobs"), full_name("/", "@odd")
    ('jobs', '@staging/jobs', '@%2F/@odd')
    """
    if host == ROOT and not name.startswith(_MARK):
        return name
    return f"{_MARK}{quote(host, safe='')}/{name}"


def is_short(text: str) -> bool:
    """Return whether a value of a table can be a name or a routing key: a text that fits a short string."""
    try:
        return len(text.encode()) <= SHORT_BYTES_MAX
    except UnicodeEncodeError:
        return False


def host_and_name(full: str) -> tuple[str, str]:
    """Return virtual host and name of a topic or route.

    Examples
    --------
    >>> host_and_name("jobs"), host_and_name("@staging/jobs"), host_and_name("@%2F/@odd")
    (('/', 'jobs'), ('staging', 'jobs'), ('/', '@odd'))
    """
    if not full.startswith(_MARK):
        return ROOT, full
    host, _, name = full[1:].partition("/")
    return unquote(host), name


def reaches(pattern: str, host: str) -> bool:
    """Return whether some name in a virtual host may match the pattern of a right.

    Examples
    --------
    >>> reaches("jobs*", "/"), reaches("jobs*", "staging"), reaches("@staging/*", "staging"), reaches("*", "staging")
    (True, False, True, True)
    """
    first, star, _ = pattern.partition("*")
    place = full_name(host, _MARK)[: -len(_MARK)]
    if first.startswith(_MARK):
        return first.startswith(place) or (bool(star) and place.startswith(first))
    return host == ROOT or pattern.startswith("*")
