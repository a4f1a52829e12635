"""Where values come from: defaults < file < environment < flags. Each value is kept with its source.

An unknown name and a value that does not fit are errors that name their source and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from wherry.model.errors import InvalidInput
from wherry.node.config import Config, masked

FILE = "wherry.toml"
PREFIX = "WHERRY_"

FLAGS: dict[str, str] = {
    "--host": "server.host",
    "--port": "server.port",
    "--unix-socket": "server.unix_socket",
    "--flight-port": "flight.port",
    "--amqp-port": "amqp.port",
    "--stomp-port": "stomp.port",
    "--data": "storage.path",
    "--cache-bytes": "storage.cache_bytes",
    "--tls-certificate": "tls.certificate",
    "--tls-key": "tls.key",
    "--tls-client-ca": "tls.client_ca",
    "--keys": "security.keys",
    "--open": "security.open",
    "--log-level": "log.level",
    "--log-format": "log.format",
}
"""Flags, and the value that each sets. Values without a flag are set by file or environment."""

NOT_OURS = re.compile(r"WHERRY_(CONFIG|URL|FLIGHT_URL|KEY|CA|CERT|CERT_KEY|PORT(_.*)?|SERVICE_(HOST|PORT)(_.*)?)")
"""Variables that are no settings: the path of the file, those of clients, and what Kubernetes sets for a service."""


class Setting(NamedTuple):
    """One value of the configuration in force."""

    name: str
    value: object
    source: str


class Effective(NamedTuple):
    """The configuration in force, and the source of each value that is not a default."""

    config: Config
    sources: dict[str, str]

    def settings(self) -> list[Setting]:
        """Return every value, in the order of the sections, for `wherry config show`. Secrets are left out."""
        return [
            Setting(name, _shown(name, getattr(getattr(self.config, section), field)), self.source(section, field))
            for section, fields in SECTIONS.items()
            for field in fields
            for name in (f"{section}.{field}",)
        ]

    def source(self, section: str, field: str) -> str:
        """Return the source of a value."""
        return self.sources.get(f"{section}.{field}", "default")


def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    names = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    return {name: hints[name] for name in names or kind.__struct_fields__}


SECTIONS: dict[str, dict[str, Any]] = {section: _fields(kind) for section, kind in _fields(Config).items()}
"""Return every name, with its type."""

NAMES = [f"{section}.{field}" for section, fields in SECTIONS.items() for field in fields]


SECRETS = frozenset({"webhooks.secret", "mesh.key"})


def _shown(name: str, value: object) -> object:
    if name == "metrics.sinks" and isinstance(value, list | tuple):
        return tuple(masked(sink) if isinstance(sink, str) else sink for sink in value)
    return "…" if name in SECRETS and value is not None else value


def load(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> Effective:
    """Return the configuration in force. `path` must exist; without it, `WHERRY_CONFIG`, or `wherry.toml` if it exists.

    `flags` are those that were given, by their spelling: `{"--port": "7071"}`.
    """
    given = path or environment.get(PREFIX + "CONFIG")
    file = Path(given or FILE)
    text = ""
    if given is not None or file.is_file():
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise InvalidInput("config", str(file), f"a TOML file that can be read ({fault})") from None
    return resolve(text, str(file), environment, flags or {})


def resolve(text: str, file: str, environment: Mapping[str, str], flags: Mapping[str, object]) -> Effective:
    """Return the configuration from the text of a file."""
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    sources: dict[str, str] = {}
    steps = (*_from_file(text, file), *_from_environment(environment), *_from_flags(flags))
    for name, value, source in steps:
        section, field = name.split(".")
        values[section][field] = _fitting(name, value, source)
        sources[name] = source
    kinds = _fields(Config)
    config = Config(**{section: kinds[section](**fields) for section, fields in values.items()})
    return Effective(config.checked(), sources)


def _from_file(text: str, file: str) -> Iterator[Setting]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise InvalidInput(f"file {file}", text, f"valid TOML ({fault})") from None
    lines = _lines(text)
    for section, table in document.items():
        place = f"file {file}" + (f":{lines[section]}" if section in lines else "")
        if section not in SECTIONS:
            raise _unknown(place, f"[{section}]", section, list(SECTIONS))
        if not isinstance(table, dict):
            raise InvalidInput(f"{section} ({place})", table, f"a section: [{section}] and its values below")
        for field, value in table.items():
            name = f"{section}.{field}"
            place = f"file {file}" + (f":{lines[name]}" if name in lines else "")
            if field not in SECTIONS[section]:
                raise _unknown(place, name, field, list(SECTIONS[section]))
            yield Setting(name, value, place)


_LINE = re.compile(r"\s*(?:\[\s*(?P<section>[\w.-]+)\s*\]|(?P<name>[\w.-]+)\s*=)")


def _lines(text: str) -> dict[str, int]:
    """Return the line of each name, as far as it can be found, for error messages."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.match(line)
        if found is not None and found["section"]:
            section = found["section"]
            lines.setdefault(section, number)
        elif found is not None:
            lines.setdefault(f"{section}.{found['name']}" if section else found["name"], number)
    return lines


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    known = {PREFIX + name.replace(".", "_").upper(): name for name in NAMES}
    for variable, value in sorted(environment.items()):
        if variable in known:
            yield Setting(known[variable], value, f"environment {variable}")
        elif variable.startswith(PREFIX) and not NOT_OURS.fullmatch(variable):
            raise _unknown("environment", variable, variable, list(known))


def _from_flags(flags: Mapping[str, object]) -> Iterator[Setting]:
    for flag, value in flags.items():
        if flag not in FLAGS:
            raise _unknown("flag", flag, flag, list(FLAGS))
        yield Setting(FLAGS[flag], value, f"flag {flag}")


def _unknown(place: str, shown: str, given: str, known: list[str]) -> InvalidInput:
    close = difflib.get_close_matches(given, known, 1)
    allowed = f"a known name; did you mean {close[0]}?" if close else "one of " + ", ".join(known)
    return InvalidInput(f"{place}: unknown name", shown, allowed)


def _fitting(name: str, value: object, source: str) -> object:
    """Return the value as its type; text from the environment and flags is parsed by the type."""
    section, field = name.split(".")
    kind = SECTIONS[section][field]
    strict = source.startswith("file ")
    if not strict and isinstance(value, str) and _is_list(kind):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        fitting: object = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as fault:
        raise InvalidInput(f"{name} ({source})", _shown(name, value), _allowed(kind, fault)) from None
    if section == "limits" and isinstance(fitting, int | float) and not fitting > 0:
        raise InvalidInput(f"{name} ({source})", value, "more than 0")
    return fitting


def _is_list(kind: Any) -> bool:
    """Return whether a setting takes several values."""
    info = msgspec.inspect.type_info(kind)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return any(isinstance(each, msgspec.inspect.CollectionType) for each in kinds)


def _allowed(kind: Any, fault: msgspec.ValidationError) -> str:
    info = msgspec.inspect.type_info(kind)
    match info:
        case msgspec.inspect.LiteralType(values=words):
            return "one of " + ", ".join(map(str, words))
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType(ge=low, le=high):
            return "a whole number" + (f" from {low} to {high}" if low is not None else "")
        case msgspec.inspect.FloatType(ge=low, le=high):
            return "a number" + (f" from {low} to {high}" if low is not None else "")
        case msgspec.inspect.StrType():
            return "text, at least one character"
        case _:
            return str(fault)
