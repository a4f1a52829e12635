"""`lost`: list, show, resend and drop the calls that a peer lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.frame import SERVICES, command, group
from wherry.cli.options import AsJson, Yes, confirm, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from wherry.service.lost.bounds import LostStatistics
    from wherry.service.lost.log import LostLog
    from wherry.service.lost.lost_call import LostCall

lost = group("lost", "Lost calls: calls of services that failed, as a peer keeps them.", SERVICES)

Folder = Annotated[Path, typer.Option("--log", metavar="DIR", help="The folder of the log.", file_okay=False)]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of calls.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All calls in the log, or all of --service.")]
OfService = Annotated[str | None, typer.Option("--service", help="Calls of this service.")]

COLUMNS = {
    "id": "id",
    "at": "at",
    "side": "side",
    "call": "call",
    "instance": "instance",
    "outcome": "outcome",
    "error": "error",
    "attempts": "attempts",
    "resend": "resend",
    "bytes": "bytes",
}


@command(lost, "lost list", "wherry lost list --log lost", "wherry lost list --log lost --service billing --json")
def list_lost(ctx: typer.Context, log: Folder, service: OfService = None, json: AsJson = False) -> None:
    """List lost calls, those that were tried last at the end."""
    options = options_of(ctx, json)
    found, counts = _run(log, lambda opened: _all(opened, service))
    output.show(COLUMNS, [_row(each) for each in found], json=options.json, empty=f"no lost calls in {log}")
    if not options.json and (counts.pushed_out or counts.expired):
        dropped = f"{counts.pushed_out:,} dropped for newer ones, {counts.expired:,} for their age"
        output.note(f"this log kept {output.many(counts.kept, 'call')}; {dropped}")


@command(lost, "lost show", "wherry lost show call-1 --log lost")
def show_lost(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the call.")],  # noqa: A002
    log: Folder,
    json: AsJson = False,
) -> None:
    """Show a lost call: everything that is kept of it, and the body."""
    options = options_of(ctx, json)
    for each in _run(log, lambda opened: _found(opened, [id])):
        body = _body(each.body, each.content)
        row = _row(each) | {"text": each.text, "session": each.session, "content": each.content, "labels": each.labels}
        output.fields(row | {"whole": not each.is_cut, "body": body}, json=options.json)


@command(lost, "lost resend", "wherry lost resend call-1 --log lost", "wherry lost resend --all --log lost")
def resend(
    log: Folder,
    ids: Ids = None,
    every: All = False,
    service: OfService = None,
) -> None:
    """Have lost calls sent again, with the ids that they have.

    The peer that keeps the log sends them, when it runs and their service is there.
    """
    _check(ids, every)

    async def ask(opened: LostLog) -> tuple[int, int]:
        chosen = await _chosen(opened, ids, service)
        whole = [each for each in chosen if not each.is_cut or ids]
        for each in whole:
            await opened.ask_for_resend(each)
        return len(whole), len(chosen) - len(whole)

    count, cut = _run(log, ask)
    output.note(f"{output.many(count, 'call')} will be sent again when the peer of {log} runs")
    if cut:
        output.note(f"{output.many(cut, 'call')} cannot be: not all of the body is kept")


@command(lost, "lost drop", "wherry lost drop call-1 --log lost --yes", "wherry lost drop --all --log lost --yes")
def drop(
    log: Folder,
    ids: Ids = None,
    every: All = False,
    service: OfService = None,
    yes: Yes = False,
) -> None:
    """Drop lost calls from the log, which deletes them."""
    _check(ids, every)
    chosen = _run(log, lambda opened: _chosen(opened, ids, service))
    if chosen:
        confirm(f"Drop {output.many(len(chosen), 'lost call')} of {log}?", yes)
    output.note(f"{_run(log, lambda opened: opened.drop(chosen)):,} dropped")


def _check(ids: list[str] | None, every: bool) -> None:
    if bool(ids) == every:
        raise typer.BadParameter("give the ids of calls, or --all", param_hint="ID")


def _run(folder: Path, work: Callable[[LostLog], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine with the log; an error says who has the folder open."""
    from asyncio import run

    from wherry.model.errors import InUse
    from wherry.service.lost.log import LostLog

    async def opened() -> Any:
        try:
            async with LostLog(folder) as log:
                return await work(log)
        except InUse as fault:
            fault.add_note("(a peer keeps its log open from its first lost call until it ends)")
            raise

    return run(opened())


async def _all(log: LostLog, service: str | None) -> tuple[list[LostCall], LostStatistics]:
    return [each async for each in log.calls(service=service)], await log.statistics()


async def _found(log: LostLog, ids: list[str]) -> list[LostCall]:
    from wherry.model.errors import NotFound

    found = []
    for each in ids:
        calls = await log.get(each)
        if not calls:
            raise NotFound("lost call", each)
        found += calls
    return found


async def _chosen(log: LostLog, ids: list[str] | None, service: str | None) -> list[LostCall]:
    return await _found(log, ids) if ids else [each async for each in log.calls(service=service)]


def _row(call: LostCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "at": output.moment(call.at_ms),
        "at_ms": call.at_ms,
        "side": call.side,
        "service": call.service,
        "method": call.method,
        "call": f"{call.service}.{call.method}",
        "instance": call.instance,
        "outcome": call.outcome,
        "error": f"{call.error}: {call.text}" if call.text else call.error,
        "attempts": call.attempts,
        "resend": call.resend,
        "bytes": len(call.body) if call.body_bytes is None else call.body_bytes,
    }


def _body(body: bytes, content: str) -> Any:
    """Return a body as people read it: the value that it holds, or text, or base64."""
    import base64

    import msgspec

    try:
        if content == "msgpack":
            return msgspec.json.encode(msgspec.msgpack.decode(body)).decode()
        return body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError):
        return f"base64:{base64.b64encode(body).decode()}"
