"""`consume`: print messages and ack them, in that order."""

from __future__ import annotations

import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wherry.cli import output
from wherry.cli.commands.catalog import SubscriptionName, TopicName
from wherry.cli.frame import MESSAGES, app, command
from wherry.cli.options import options_of
from wherry.cli.values import duration

if TYPE_CHECKING:
    from wherry.cli.link import BrokerLink
    from wherry.client.batch import Batch

Format = Literal["text", "json", "raw"]

PULL_MESSAGES = 1_000
PULL_BYTES = 8 << 20
FOLLOW_MS = 20_000
HELD_MAX = 1_000
"""How many messages `--no-ack` holds at most, until it ends."""


@command(
    app,
    "consume",
    "wherry consume --create jobs workers",
    "wherry consume jobs workers --count 1 --format json",
    "wherry consume jobs workers --no-ack --count 5",
    "wherry consume jobs workers --follow --count 1 --wait 1s",
    panel=MESSAGES,
)
def consume(
    ctx: typer.Context,
    topic: TopicName,
    subscription: SubscriptionName,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="At most so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C or --count.")] = False,
    wait: Annotated[
        int | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long to wait for the next.", show_default="0s"),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Without: look, and hand all of it back.")] = True,
    create: Annotated[bool, typer.Option("--create", help="Create topic and subscription if need be.")] = False,
    form: Annotated[Format, typer.Option("--format", help="Payload lines, JSON lines, payload bytes.")] = "text",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Consume messages and print them; each is acked when it is printed.

    Ends when no message is ready, unless --follow is given. A printed message whose ack failed is delivered again.
    """
    if not ack and follow:
        raise typer.BadParameter("--no-ack holds what it shows until it ends, so it cannot follow")
    options = options_of(ctx, json)
    limit = count if ack else min(count or HELD_MAX, HELD_MAX)
    wait_ms = FOLLOW_MS if follow and wait is None else wait or 0
    form = "json" if options.json else form
    job = ConsumeJob(topic, subscription, limit, wait_ms, form, ack, follow and wait is None, create)
    try:
        options.run(job.run)
    finally:
        output.note(output.many(job.seen, "message") + ("" if ack else ", handed back"))


@dataclass
class ConsumeJob:
    """One run of the command."""

    topic: str
    subscription: str
    limit: int | None
    wait_ms: int
    form: Format
    ack: bool
    follow: bool
    create: bool
    seen: int = 0

    async def run(self, link: BrokerLink) -> None:
        """Pull, print and ack until the command ends."""
        from wherry.model.errors import InvalidInput, WherryError

        if self.create:
            await self._make(link)
        acks = (await link.client.subscription(self.topic, self.subscription)).acks
        if not acks and not self.ack:
            raise InvalidInput(
                "--no-ack",
                f"{self.topic}/{self.subscription}",
                "a subscription with acks: of one without, what is handed out cannot be handed back",
            )
        name, requests = f"cli-{secrets.token_hex(4)}", link.client.subscription_requests(self.topic, self.subscription)
        held: list[Batch] = []
        try:
            while self.limit is None or self.seen < self.limit:
                room = PULL_MESSAGES if self.limit is None else min(PULL_MESSAGES, self.limit - self.seen)
                batch = await requests.pull(room, PULL_BYTES, self.wait_ms, name, acks=acks)
                if not len(batch) and not self.follow:
                    break
                self._print(batch)
                if self.ack and len(batch):
                    await batch.ack()
                elif len(batch):
                    held.append(batch)
        finally:
            for batch in held:
                with suppress(WherryError):  # its lease ended, so it waits again already
                    await batch.release()
            with suppress(WherryError):
                await requests.leave(name)

    async def _make(self, link: BrokerLink) -> None:
        place = ("topics", self.topic)
        if await link.exists(*place) is None:
            await link.call("PUT", *place, body={})
        if await link.exists(*place, "subscriptions", self.subscription) is None:
            await link.call("PUT", *place, "subscriptions", self.subscription, body={})

    def _print(self, batch: Batch) -> None:
        """Print a batch and flush stdout; only then it may be acked."""
        out = sys.stdout.buffer
        match self.form:
            case "raw":
                out.writelines(batch.payloads())
            case "json":
                for message in batch:
                    output.as_json(_fields(message))
            case "text":
                quiet = sys.stdout.isatty()
                for payload in batch.payloads():
                    text = payload.decode("utf-8", "replace")
                    out.write((output.safe(text) if quiet else text).encode() + b"\n")
        sys.stdout.flush()
        out.flush()
        self.seen += len(batch)


def _fields(message: Any) -> dict[str, Any]:
    """Return a message in the fields of docs/http.md, without empty ones."""
    from base64 import b64encode

    fields: dict[str, Any] = {"id": message.id}
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = b64encode(message.payload).decode()
    names = ("key", "priority", "due_ms", "headers", "partition", "offset", "attempt", "published_ms")
    return fields | {name: value for name in names if (value := getattr(message, name)) not in (None, {})}
