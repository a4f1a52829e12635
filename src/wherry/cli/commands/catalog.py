"""`topic` and `subscription`: list, show, create, change, delete."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wherry.cli import guess, output
from wherry.cli.frame import CATALOG, command, complain, group
from wherry.cli.options import AsJson, Yes, confirm, options_of
from wherry.cli.values import duration, given, instant, require_any

if TYPE_CHECKING:
    from wherry.cli.link import BrokerLink

TopicName = Annotated[str, typer.Argument(help="The name of a topic.", metavar="TOPIC", autocompletion=guess.topics)]
SubscriptionName = Annotated[
    str,
    typer.Argument(help="The name of a subscription.", metavar="SUBSCRIPTION", autocompletion=guess.subscriptions),
]

# ------------------------------------------------------------------------------------------------------------- topics

topics = group("topic", "Topics: named queues, each with one order.", CATALOG)

Order = Annotated[
    Literal["fifo", "priority", "timeline"] | None, typer.Option(help="What leaves first.", show_default="fifo")
]
Partitions = Annotated[int | None, typer.Option(help="Units of order, 1 to 65535.", show_default="1")]
MorePartitions = Annotated[int | None, typer.Option("--partitions", help="More than it has.", show_default=False)]
Persistent = Annotated[
    bool | None, typer.Option("--persistent/--transient", help="On disk, or in memory only.", show_default="persistent")
]
PayloadMax = Annotated[int | None, typer.Option(help="Largest body, up to 1048576.", show_default="65535")]
MessagesMax = Annotated[int | None, typer.Option(help="How many may wait.", show_default="no bound")]
BytesMax = Annotated[int | None, typer.Option(help="How many bytes may wait.", show_default="no bound")]
Overflow = Annotated[
    Literal["refuse", "dead-letter", "drop-oldest", "dead-letter-oldest"] | None,
    typer.Option(help="What happens to a message that does not fit.", show_default="refuse"),
]
DeadMax = Annotated[int | None, typer.Option(help="How many dead letters are kept.", show_default="1000000")]
Keep = Annotated[
    Literal["settled", "age", "bytes"] | None,
    typer.Option(help="How long a message stays: until settled, by age, by bytes.", show_default="settled"),
]
KeepFor = Annotated[
    int | None,
    typer.Option(
        parser=duration, metavar="DURATION", help="Of a topic that keeps by age: 7d, 12h.", show_default=False
    ),
]
KeepBytes = Annotated[
    int | None, typer.Option(help="Of one that keeps by bytes: for each partition.", show_default=False)
]
Expired = Annotated[
    Literal["drop", "dead-letter"] | None,
    typer.Option(help="What happens to a message that expires unread.", show_default="drop"),
]
Mesh = Annotated[
    Literal["safe", "flow"] | None,
    typer.Option(help="flow: every node that has the topic takes messages, and passes them on.", show_default="safe"),
]


def _topic_row(view: dict[str, Any]) -> dict[str, Any]:
    """Return a topic as a flat row."""
    stats: dict[str, Any] = view["stats"]
    behind = [each["lag"] for each in stats["subscriptions"]]
    return {
        "name": stats["name"],
        "order": stats["order"],
        "partitions": stats["partitions"],
        "messages": stats["messages"],
        "bytes": stats["bytes"],
        "dead": stats["dead"],
        "published": stats["counters"].get("published", 0),
        "subscriptions": len(behind),
        "lag": max(behind, default=0),
    }


@command(topics, "topic list", "wherry topic list", "wherry topic list --json")
def list_topics(ctx: typer.Context, json: AsJson = False) -> None:
    """List topics with the number of messages in each. `lag` is that of the subscription that is furthest behind."""
    options = options_of(ctx, json)
    views = options.run(lambda link: link.call("GET", "topics"))["topics"]
    rows = [_topic_row(view) for view in views]
    columns = {name: name for name in ("name", "order", "partitions", "messages", "bytes", "dead", "published", "lag")}
    output.show(columns, rows, json=options.json, empty="no topics yet: wherry topic create jobs")


@command(topics, "topic show", "wherry topic show jobs")
def show_topic(ctx: typer.Context, topic: TopicName, json: AsJson = False) -> None:
    """Show the settings and statistics of a topic."""
    options = options_of(ctx, json)
    view = options.run(lambda link: link.call("GET", "topics", topic))
    if not options.json:
        view["stats"] = {name: value for name, value in view["stats"].items() if name != "subscriptions"}
        view["stats"].pop("name")
    output.fields(view, json=options.json)


@command(
    topics,
    "topic create",
    "wherry topic create jobs",
    "wherry topic create alarms --order priority --messages-max 100000",
    "wherry topic create mails --order timeline",
)
def create_topic(
    ctx: typer.Context,
    topic: TopicName,
    order: Order = None,
    partitions: Partitions = None,
    persistent: Persistent = None,
    payload_bytes_max: PayloadMax = None,
    messages_max: MessagesMax = None,
    bytes_max: BytesMax = None,
    overflow: Overflow = None,
    dead_messages_max: DeadMax = None,
    keep: Keep = None,
    keep_for: KeepFor = None,
    keep_bytes: KeepBytes = None,
    expired: Expired = None,
    mesh: Mesh = None,
) -> None:
    """Create a topic. An existing topic is not changed."""
    wanted = given(
        order=order,
        partitions=partitions,
        persistent=persistent,
        payload_bytes_max=payload_bytes_max,
        messages_max=messages_max,
        bytes_max=bytes_max,
        overflow=overflow,
        dead_messages_max=dead_messages_max,
        keep=keep,
        keep_ms=keep_for,
        keep_bytes=keep_bytes,
        expired=expired,
        mesh=mesh,
    )

    async def work(link: BrokerLink) -> Any:
        known = await link.exists("topics", topic)
        if known is None:
            await link.call("PUT", "topics", topic, body=wanted)
        return known

    _note_created(f"topic {topic}", wanted, options_of(ctx).run(work), f"wherry topic change {topic}")


def _note_created(what: str, wanted: dict[str, object], known: dict[str, Any] | None, change: str) -> None:
    """Print whether it is new; print an error and exit if it exists with other settings."""
    if known is None:
        output.note(f"{what} is created")
        return
    config = known["config"]
    other = [f"{name} is {config[name]!r}" for name, value in wanted.items() if config[name] != value]
    if other:
        complain(f"{what} exists and differs: {', '.join(other)}; {change} changes what may change")
        raise typer.Exit(1)
    output.note(f"{what} is there already")


@command(
    topics,
    "topic change",
    "wherry topic change jobs --messages-max 1000000 --overflow dead-letter",
    "wherry topic change jobs --partitions 4",
)
def change_topic(
    ctx: typer.Context,
    topic: TopicName,
    partitions: MorePartitions = None,
    payload_bytes_max: PayloadMax = None,
    messages_max: MessagesMax = None,
    bytes_max: BytesMax = None,
    overflow: Overflow = None,
    dead_messages_max: DeadMax = None,
    keep_for: KeepFor = None,
    keep_bytes: KeepBytes = None,
    expired: Expired = None,
) -> None:
    """Change the given settings. Order, persistence and `keep` cannot change; partitions can only be added.

    With more partitions, new messages of a key may be in another partition than the earlier ones.
    """
    wanted = given(
        partitions=partitions,
        payload_bytes_max=payload_bytes_max,
        messages_max=messages_max,
        bytes_max=bytes_max,
        overflow=overflow,
        dead_messages_max=dead_messages_max,
        keep_ms=keep_for,
        keep_bytes=keep_bytes,
        expired=expired,
    )
    require_any(wanted)
    options_of(ctx).run(lambda link: link.call("PATCH", "topics", topic, body=wanted))
    output.note(f"topic {topic} is changed")


@command(topics, "topic delete", "wherry topic delete alarms --yes")
def delete_topic(ctx: typer.Context, topic: TopicName, yes: Yes = False) -> None:
    """Delete a topic with its messages, subscriptions and dead letters."""
    options = options_of(ctx)
    stats = options.run(lambda link: link.call("GET", "topics", topic))["stats"]
    what = (
        f"{stats['messages']:,} messages, {len(stats['subscriptions'])} subscriptions, {stats['dead']:,} dead letters"
    )
    confirm(f"Delete topic {topic} with {what}?", yes)
    options.run(lambda link: link.call("DELETE", "topics", topic))
    output.note(f"topic {topic} is deleted, with {what}")


# ------------------------------------------------------------------------------------------------------ subscriptions

SECRET_BYTES = 32

subscriptions = group("subscription", "Subscriptions: readers of a topic, each with its own progress.", CATALOG)

Lease = Annotated[
    int | None,
    typer.Option(
        "--lease", parser=duration, metavar="DURATION", help="Until a message comes back.", show_default="30s"
    ),
]
Attempts = Annotated[int | None, typer.Option(help="Failures before a dead letter.", show_default="16")]
RetryFirst = Annotated[
    int | None, typer.Option(parser=duration, metavar="DURATION", help="The first pause.", show_default="1s")
]
RetryCap = Annotated[
    int | None, typer.Option(parser=duration, metavar="DURATION", help="The longest pause.", show_default="10m")
]
BufferMessages = Annotated[
    int | None, typer.Option(help="How far behind it may fall before it is cut off.", show_default="no bound")
]
BufferBytes = Annotated[int | None, typer.Option(help="The same in bytes.", show_default="no bound")]

HookUrl = Annotated[
    str | None, typer.Option("--webhook", metavar="URL", help="Messages are posted there.", show_default=False)
]
HookSecret = Annotated[
    str | None, typer.Option("--webhook-secret", metavar="TEXT", help="Signs each call; 16 to 256 characters.")
]
HookBatch = Annotated[int | None, typer.Option("--webhook-batch", help="Messages in one call.", show_default="1")]
HookTimeout = Annotated[
    int | None,
    typer.Option("--webhook-timeout", parser=duration, metavar="DURATION", help="For a call.", show_default="10s"),
]
HookInFlight = Annotated[int | None, typer.Option("--webhook-in-flight", help="Calls at a time.", show_default="1")]
HookRemoveAfter = Annotated[
    int | None,
    typer.Option("--webhook-remove-after", help="Calls in vain until it is removed.", show_default="10"),
]


def _retry(attempts: int | None, first_ms: int | None, cap_ms: int | None) -> dict[str, object] | None:
    policy = given(attempts=attempts, first_ms=first_ms, cap_ms=cap_ms)
    if first_ms is not None and cap_ms is None:
        policy["cap_ms"] = max(first_ms, 600_000)
    return policy or None


@command(subscriptions, "subscription list", "wherry subscription list jobs", "wherry subscription list jobs --json")
def list_subscriptions(ctx: typer.Context, topic: TopicName, json: AsJson = False) -> None:
    """List the subscriptions of a topic with the progress of each."""
    options = options_of(ctx, json)
    views = options.run(lambda link: link.call("GET", "topics", topic, "subscriptions"))["subscriptions"]
    rows = [view["stats"] | {"age": output.span(view["stats"]["lag_ms"])} for view in views]
    names = ("name", "consumers", "ready", "leased", "scheduled", "dead", "lag", "age")
    hint = f"no subscriptions yet: wherry subscription create {topic} workers"
    output.show({name: name for name in names}, rows, json=options.json, empty=hint)


@command(subscriptions, "subscription show", "wherry subscription show jobs workers")
def show_subscription(
    ctx: typer.Context, topic: TopicName, subscription: SubscriptionName, json: AsJson = False
) -> None:
    """Show the settings of a subscription, its lag, and its consumers."""
    options = options_of(ctx, json)

    async def work(link: BrokerLink) -> Any:
        place = ("topics", topic, "subscriptions", subscription)
        return await link.call("GET", *place) | await link.call("GET", *place, "consumers")

    view = options.run(work)
    consumers = view["consumers"]
    if not options.json:
        view["consumers"] = [f"{each['name']} holds {each['out_messages']}" for each in consumers]
    output.fields(view, json=options.json)


@command(
    subscriptions,
    "subscription create",
    "wherry subscription create jobs workers",
    "wherry subscription create jobs strict --attempts 3 --lease 5m --retry-first 2s",
    "wherry subscription create jobs late --start latest",
    "wherry subscription create mails hook --webhook https://example.com/mails --webhook-batch 100",
)
def create_subscription(
    ctx: typer.Context,
    topic: TopicName,
    subscription: SubscriptionName,
    start: Annotated[
        str | None, typer.Option(help="earliest, latest, an offset such as 1041, or a time such as '2h ago'.")
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Gone with its last consumer.")] = False,
    acks: Annotated[bool, typer.Option("--acks/--no-acks", help="Without acks: at most once.")] = True,
    key_order: Annotated[bool, typer.Option("--key-order", help="One message of a key at a time.")] = False,
    lease: Lease = None,
    attempts: Attempts = None,
    retry_first: RetryFirst = None,
    retry_cap: RetryCap = None,
    assignment: Annotated[str | None, typer.Option(help="balanced, ordered, shared, exclusive, or your own.")] = None,
    buffer_messages: BufferMessages = None,
    buffer_bytes: BufferBytes = None,
    webhook: HookUrl = None,
    webhook_secret: HookSecret = None,
    webhook_batch: HookBatch = None,
    webhook_timeout: HookTimeout = None,
    webhook_in_flight: HookInFlight = None,
    webhook_remove_after: HookRemoveAfter = None,
) -> None:
    """Create a subscription. Creating the same one again is no error.

    With --webhook the broker pushes; if no secret is given, one is made and shown only now.
    """
    webhook_fields = given(
        url=webhook,
        secret=webhook_secret,
        batch=webhook_batch,
        timeout_ms=webhook_timeout,
        in_flight=webhook_in_flight,
        remove_after=webhook_remove_after,
    )
    made = None
    if webhook_fields and webhook is None:
        raise typer.BadParameter("options of a webhook need --webhook", param_hint="--webhook")
    if webhook_fields and webhook_secret is None:
        made = webhook_fields["secret"] = secrets.token_urlsafe(SECRET_BYTES)
    wanted = given(
        durable=False if ephemeral else None,
        acks=None if acks else False,
        key_order=key_order or None,
        lease_ms=lease,
        retry=_retry(attempts, retry_first, retry_cap),
        assignment=assignment,
        buffer_messages=buffer_messages,
        buffer_bytes=buffer_bytes,
        webhook=webhook_fields or None,
    ) | _start(start)
    place = ("topics", topic, "subscriptions", subscription)
    options_of(ctx).run(lambda link: link.call("PUT", *place, body=wanted))
    if made is not None:
        typer.echo(made)
        output.note("this secret signs its calls, and is shown once")
    output.note(f"subscription {subscription} of {topic} is there")


def _start(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    if text in ("earliest", "latest"):
        return {"start": text}
    if text.isdecimal():
        return {"start": "offset", "start_offset": int(text)}
    return {"start": "time", "start_ms": instant(text)}


@command(
    subscriptions,
    "subscription change",
    "wherry subscription change jobs workers --lease 2m --attempts 5",
    "wherry subscription change mails hook --no-webhook",
)
def change_subscription(
    ctx: typer.Context,
    topic: TopicName,
    subscription: SubscriptionName,
    lease: Lease = None,
    attempts: Attempts = None,
    retry_first: RetryFirst = None,
    retry_cap: RetryCap = None,
    buffer_messages: BufferMessages = None,
    buffer_bytes: BufferBytes = None,
    webhook: HookUrl = None,
    webhook_secret: HookSecret = None,
    webhook_batch: HookBatch = None,
    webhook_timeout: HookTimeout = None,
    webhook_in_flight: HookInFlight = None,
    webhook_remove_after: HookRemoveAfter = None,
    no_webhook: Annotated[bool, typer.Option("--no-webhook", help="Push no more; consumers pull.")] = False,
) -> None:
    """Change the given settings. To change a webhook, give its secret too, since the broker does not return it."""
    webhook_fields = given(
        url=webhook,
        secret=webhook_secret,
        batch=webhook_batch,
        timeout_ms=webhook_timeout,
        in_flight=webhook_in_flight,
        remove_after=webhook_remove_after,
    )
    if webhook_fields and (no_webhook or webhook_secret is None):
        raise typer.BadParameter("either --no-webhook, or what changes together with its --webhook-secret")
    wanted = given(lease_ms=lease, buffer_messages=buffer_messages, buffer_bytes=buffer_bytes)
    retry = given(attempts=attempts, first_ms=retry_first, cap_ms=retry_cap)
    if no_webhook:
        wanted["webhook"] = None
    require_any(wanted | retry | webhook_fields)
    place = ("topics", topic, "subscriptions", subscription)

    async def work(link: BrokerLink) -> None:
        config = (await link.call("GET", *place))["config"] if retry or webhook_fields else {}
        if retry:  # a retry policy is replaced as a whole, and so is a webhook
            wanted["retry"] = config["retry"] | retry
        if webhook_fields:
            wanted["webhook"] = (config["webhook"] or {}) | webhook_fields
        await link.call("PATCH", *place, body=wanted)

    options_of(ctx).run(work)
    output.note(f"subscription {subscription} of {topic} is changed")


@command(subscriptions, "subscription delete", "wherry subscription delete jobs late --yes")
def delete_subscription(ctx: typer.Context, topic: TopicName, subscription: SubscriptionName, yes: Yes = False) -> None:
    """Delete a subscription with its progress and dead letters."""
    options, place = options_of(ctx), ("topics", topic, "subscriptions", subscription)
    stats = options.run(lambda link: link.call("GET", *place))["stats"]
    what = f"{stats['lag']:,} messages not settled and {stats['dead']:,} dead letters"
    confirm(f"Delete subscription {subscription} of {topic} with {what}?", yes)
    options.run(lambda link: link.call("DELETE", *place))
    output.note(f"subscription {subscription} of {topic} is deleted, with {what}")
