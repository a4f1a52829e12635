"""`service`: services of peers, found by a registry, or at the URL of one instance."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from wherry.cli import output
from wherry.cli.frame import CATALOG, command, group
from wherry.cli.options import AsJson, GlobalOptions, options_of
from wherry.cli.values import given
from wherry.model.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from wherry.mesh.instance import Instance
    from wherry.mesh.registry import Roster
    from wherry.service.calling.instances import InstanceControl
    from wherry.service.providing.views import ServiceView

T = TypeVar("T")

services = group("service", "Services: methods that peers provide, and others call directly.", CATALOG)

ServiceName = Annotated[str, typer.Argument(help="The name of a service.", metavar="SERVICE")]
RegistryUrl = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="WHERRY_REGISTRY",
        metavar="URL",
        help="gossip://seed:7073, zk://host/path, dns://name:port or static://host:port.",
        show_envvar=True,
    ),
]
OnlyInstance = Annotated[str | None, typer.Option("--instance", metavar="ID", help="One instance; all by default.")]
MethodNames = Annotated[list[str] | None, typer.Option("--method", metavar="NAME", help="May be repeated.")]


def _run(registry: str, work: Callable[[Roster], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine with the roster of a registry."""
    from asyncio import run

    from wherry.mesh.opening import open_registry

    async def main() -> T:
        opened = open_registry(registry)
        await opened.start()
        try:
            return await work(opened.roster)
        finally:
            await opened.close()

    return run(main())


def _control(options: GlobalOptions, instance: Instance) -> InstanceControl:
    from wherry.service.calling.instances import InstanceControl

    return InstanceControl(instance, token=options.key, tls=options.tls.context())


def _instances(roster: Roster, service: str, only: str | None) -> Iterator[Instance]:
    found = roster.of(service)
    if only is not None:
        found = tuple(each for each in found if each.id == only)
    if not found:
        raise NotFound("instance", f"{service} {only}") if only is not None else NotFound("service", service)
    return iter(found)


def _on_each(
    options: GlobalOptions,
    registry: str,
    service: str,
    only: str | None,
    work: Callable[[InstanceControl], Coroutine[Any, Any, ServiceView]],
) -> list[tuple[Instance, ServiceView]]:
    """Ask instances one after the other; the first error ends it."""

    async def ask(roster: Roster) -> list[tuple[Instance, ServiceView]]:
        found = []
        for instance in _instances(roster, service, only):
            async with _control(options, instance) as control:
                found.append((instance, await work(control)))
        return found

    return _run(registry, ask)


METHOD_COLUMNS = {
    "instance": "instance",
    "name": "method",
    "state": "state",
    "running": "running",
    "max_concurrent": "of",
    "waiting": "waiting",
    "answered": "answered",
    "refused": "refused",
    "failed": "failed",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}


def _rows(found: list[tuple[Instance, ServiceView]]) -> list[dict[str, Any]]:
    from msgspec import to_builtins

    rows = []
    for instance, view in found:
        for method in view.methods:
            state = "draining" if view.draining else "paused" if method.paused else "open"
            counts = {name: method.calls.get(name, 0) for name in ("answered", "refused", "failed")}
            rows.append({"instance": instance.id, "state": state, **counts, **to_builtins(method)})
    return rows


def _show(options: GlobalOptions, found: list[tuple[Instance, ServiceView]]) -> None:
    output.show(METHOD_COLUMNS, _rows(found), json=options.json, empty="no methods")


@command(services, "service list", "wherry service list", "wherry service list --json")
def list_services(ctx: typer.Context, registry: RegistryUrl, json: AsJson = False) -> None:
    """List the services that a registry knows, with their instances."""
    options = options_of(ctx, json)

    async def known(roster: Roster) -> list[dict[str, Any]]:
        listed = [each for instances in roster.services.values() for each in instances]
        if not listed:  # a list of hosts names no services: ask each host
            for host in roster.of("services"):
                async with _control(options, host) as control:
                    names = [each.service for each in (await control.services()).services]
                listed += [type(host)(service=name, id=host.id, url=host.url) for name in names]
        return [{"service": e.service, "instance": e.id, "url": e.url, "methods": " ".join(e.methods)} for e in listed]

    columns = {"service": "service", "instance": "instance", "url": "URL", "methods": "methods"}
    output.show(columns, _run(registry, known), json=options.json, empty="the registry knows no services")


@command(services, "service show", "wherry service show billing", "wherry service show billing --json")
def show(
    ctx: typer.Context, service: ServiceName, registry: RegistryUrl, instance: OnlyInstance = None, json: AsJson = False
) -> None:
    """Show the methods of a service at each instance: limits, counts and times."""
    options = options_of(ctx, json)
    _show(options, _on_each(options, registry, service, instance, lambda control: control.service()))


@command(services, "service pause", "wherry service pause billing --method total")
def pause(
    ctx: typer.Context,
    service: ServiceName,
    registry: RegistryUrl,
    instance: OnlyInstance = None,
    method: MethodNames = None,
) -> None:
    """Pause methods, all by default: their calls go to other instances, or are refused."""
    _change(ctx, registry, service, instance, "pause", {"methods": method or []})


@command(services, "service drain", "wherry service drain billing")
def drain(ctx: typer.Context, service: ServiceName, registry: RegistryUrl, instance: OnlyInstance = None) -> None:
    """Drain instances: they are withdrawn, end the calls under way, and accept no new ones until they are resumed."""
    _change(ctx, registry, service, instance, "drain", {})


@command(services, "service resume", "wherry service resume billing")
def resume(
    ctx: typer.Context,
    service: ServiceName,
    registry: RegistryUrl,
    instance: OnlyInstance = None,
    method: MethodNames = None,
) -> None:
    """Resume methods; without --method also an instance that drained."""
    _change(ctx, registry, service, instance, "resume", {"methods": method or []})


@command(services, "service limit", "wherry service limit billing --method total --max-concurrent 4")
def limit(
    ctx: typer.Context,
    service: ServiceName,
    registry: RegistryUrl,
    instance: OnlyInstance = None,
    method: Annotated[str | None, typer.Option(help="A method; else the limit is of the service.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Calls that run at a time, in each instance.")] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Calls of the method that wait for them.")] = None,
) -> None:
    """Change how many calls run and wait at a time."""
    body = given(method=method, max_concurrent=max_concurrent, max_waiting=max_waiting)
    _change(ctx, registry, service, instance, "limit", body)


def _change(
    ctx: typer.Context, registry: str, service: str, instance: str | None, verb: str, body: dict[str, Any]
) -> None:
    options = options_of(ctx)
    _show(options, _on_each(options, registry, service, instance, lambda control: control.control(verb, body)))


@command(services, "service call", """wherry service call billing.total '{"items": [1, 2]}'""")
def call(
    ctx: typer.Context,
    method: Annotated[str, typer.Argument(metavar="SERVICE.METHOD", help="What to call.")],
    registry: RegistryUrl,
    argument: Annotated[str | None, typer.Argument(metavar="JSON", help="The argument as JSON.")] = None,
    timeout_s: Annotated[float, typer.Option(help="The deadline, in seconds.")] = 30.0,
    session: Annotated[str | None, typer.Option(help="Calls of a session reach one instance.")] = None,
) -> None:
    """Call a method, and print its result as JSON; bytes as they are."""
    options = options_of(ctx)
    result = _called(options, registry, method, _value(argument), timeout_s=timeout_s, session=session)
    if isinstance(result, bytes):
        typer.echo(result)
    else:
        output.as_json(result)


def _called(options: GlobalOptions, registry: str, method: str, value: object, **more: Any) -> Any:
    from asyncio import run

    from wherry.service.peer import peer
    from wherry.service.trust import Trust

    key = options.key
    trust = Trust(token=None if key is None else lambda: key, tls=options.tls.context())

    async def main() -> Any:
        async with peer(registry=registry, trust=trust) as caller:
            return await caller.call(method, value, **more)

    return run(main())


def _value(text: str | None) -> object:
    """Return an argument as it is sent; nothing is no argument."""
    if text is None:
        return b""
    from msgspec import DecodeError
    from msgspec.json import decode

    try:
        return decode(text.encode())
    except (DecodeError, UnicodeEncodeError) as fault:
        raise InvalidInput("argument", text, f"JSON ({fault})") from None
