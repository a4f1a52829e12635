"""The file of a pipeline: sources, steps and sinks, each of which is one thing of Spark. Read and checked here.

A source is a `readStream`, a step a view, a sink a `writeStream` with a checkpoint of its own. Nothing else is added:
all happens as in structured streaming. docs/pipelines.md describes all fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from wherry.model import check, limits
from wherry.model.errors import InvalidInput
from wherry.spark.options.options import PAYLOADS

Word = str | int | float | bool
Mode = Literal["append", "update", "complete"]
Target = Literal["topic", "parquet", "table"]

BAD = "bad"
RESTARTS = 3

_SET_BY_US = {
    **dict.fromkeys(("topic", "payload"), "it is a field of the source"),
    "payloadschema": "the field schema of the source is it",
    "subscription": "each query has one for each of its sources",
    "url": "--url names the broker",
}
"""Options of a source that the file sets in another way, with the reason."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME = "letters, digits and _, not a digit first: the name is used in SQL"


class PipelineSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Topics that are read as they grow."""

    topic: str
    payload: str = "bytes"
    schema: str | None = None
    expect: dict[str, str] = {}
    """Conditions that good rows meet, by the text for a row that does not."""
    dead: str | None = None
    """The topic for rows that cannot be decoded or do not meet a condition."""
    watermark: str | None = None
    options: dict[str, Word] = {}

    @property
    def has_bad_rows(self) -> bool:
        """Whether a row of this source can be bad."""
        return self.payload != "bytes" or bool(self.expect)


class PipelineTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that does not change, to join with; read again when the pipeline starts."""

    format: str = "parquet"
    path: str | None = None
    schema: str | None = None
    options: dict[str, Word] = {}


class PipelineStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A view: SQL, or `file.py:function` with arguments named after the views that they take."""

    sql: str | None = None
    python: str | None = None


class PipelineSink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """The target of rows: one query, with one checkpoint."""

    source: str
    topic: str | None = None
    parquet: str | None = None
    table: str | None = None
    mode: Mode = "append"
    every: str | None = None
    partition_by: list[str] = []
    options: dict[str, Word] = {}

    @property
    def kind(self) -> Target:
        return "topic" if self.topic is not None else "parquet" if self.parquet is not None else "table"

    @property
    def target(self) -> str:
        return self.topic or self.parquet or self.table or ""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline."""

    name: str
    checkpoint: str = "checkpoints"
    restarts: int = RESTARTS
    sources: dict[str, PipelineSource]
    tables: dict[str, PipelineTable] = {}
    steps: dict[str, PipelineStep] = {}
    sinks: dict[str, PipelineSink]
    spark: dict[str, Word] = {}
    """Settings of the session."""
    folder: Path = Path()
    """The folder of the file, which paths are relative to."""

    def place(self, path: str) -> str:
        """Return a path of the file in the form that Spark takes."""
        return path if "://" in path else str((self.folder / path).resolve())

    def checkpoint_of(self, query: str) -> str:
        return f"{self.place(self.checkpoint)}/{query}"

    def dead_topic(self, source: str) -> str:
        return self.sources[source].dead or f"{self.name}.{source}.{BAD}"

    def made_topics(self) -> dict[str, dict[str, int]]:
        """Return the topics to create if they do not exist, each with its fields: those of sinks and of bad rows."""
        large = {"payload_bytes_max": limits.PAYLOAD_BYTES_MAX}  # every payload that was read fits
        dead = {self.dead_topic(name): large for name, source in self.sources.items() if source.has_bad_rows}
        plain: dict[str, dict[str, int]] = {sink.topic: {} for sink in self.sinks.values() if sink.topic is not None}
        return plain | dead

    def subscription_of(self, query: str, source: str) -> str:
        """Return the subscription of one load: two loads with the same one would settle each other's rows."""
        return f"{self.name}.{query}.{source}"

    def sources_of(self, query: str) -> list[str]:
        """Return the sources that a query may read."""
        bad = query.removesuffix(f".{BAD}")
        names = [bad] if bad != query else self.needed(self.sinks[query].source)
        return [name for name in names if name in self.sources]

    def queries(self) -> list[str]:
        """Return all queries: one for each sink, and one for the bad rows of each source that can have some."""
        bad = [f"{name}.{BAD}" for name, source in self.sources.items() if source.has_bad_rows]
        return [*self.sinks, *bad]

    def needed(self, name: str) -> list[str]:
        """Return the names that a view is made of, with its own, in the order of the file.

        Names are found in the text of steps, in any case as in SQL; a name too many only costs time.
        """
        wanted, names = {name}, [*self.sources, *self.tables, *self.steps]
        for step in reversed(self.steps):
            if step in wanted:
                text = self.text_of(step)
                wanted |= {each for each in names if re.search(rf"\b{each}\b", text, re.IGNORECASE)}
        return [each for each in names if each in wanted]

    def text_of(self, step: str) -> str:
        """Return the SQL or Python of a step."""
        made = self.steps[step]
        if made.sql is not None:
            return made.sql
        return _read(self.folder / (made.python or "").rpartition(":")[0])


def read(path: Path) -> Spec:
    """Return a pipeline from its TOML; raise `InvalidInput` for what is wrong with it."""
    text = _read(path)
    try:
        given: Any = msgspec.toml.decode(text)
        if isinstance(given, dict):
            given = {"name": path.stem} | given
        spec = msgspec.convert({**given, "folder": path.parent.resolve()}, Spec, dec_hook=_path)
    except msgspec.MsgspecError as fault:
        raise InvalidInput(str(path), None, f"a pipeline ({fault})") from None
    for where, value, allowed in _faults(spec):
        raise InvalidInput(f"{path}: {where}", value, allowed)
    return spec


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, Path):
        return value
    raise NotImplementedError(kind)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidInput("file", str(path), f"a file that can be read ({fault})") from None


Fault = tuple[str, object, str]


def _faults(spec: Spec) -> Iterator[Fault]:
    check.name("name", spec.name, limits.SUBSCRIPTION_NAME_CHARS_MAX // 2)
    if not spec.sources or not spec.sinks:
        yield "sources, sinks", None, "at least one of each"
    yield from _wrong_names(spec)
    for name, source in spec.sources.items():
        if source.payload not in PAYLOADS:
            yield f"sources.{name}.payload", source.payload, "one of " + ", ".join(PAYLOADS)
        if source.payload in ("json", "avro") and source.schema is None:
            yield f"sources.{name}.schema", None, f"a schema, since payload is {source.payload}"
        for option in source.options:
            if option.lower() in _SET_BY_US:
                yield f"sources.{name}.options.{option}", source.options[option], f"none: {_SET_BY_US[option.lower()]}"
    for name, step in spec.steps.items():
        if (step.sql is None) == (step.python is None):
            yield f"steps.{name}", None, "sql or python, one of the two"
        if step.python is not None and not all(step.python.rpartition(":")[::2]):
            yield f"steps.{name}.python", step.python, "file.py:function"
    for name, sink in spec.sinks.items():
        yield from _wrong_sink(spec, name, sink)
    yield from _wrong_subscriptions(spec)


def _wrong_names(spec: Spec) -> Iterator[Fault]:
    seen: set[str] = set()
    for kind in ("sources", "tables", "steps", "sinks"):
        for name in getattr(spec, kind):
            if not _NAME.fullmatch(name):
                yield f"{kind}.{name}", name, NAME
            if kind != "sinks" and name.lower() in seen:
                yield f"{kind}.{name}", name, "a name that no other source, table or step has, in whichever case"
            seen.add(name.lower())


def _wrong_sink(spec: Spec, name: str, sink: PipelineSink) -> Iterator[Fault]:
    if sink.source not in (*spec.sources, *spec.steps):
        yield f"sinks.{name}.from", sink.source, "the name of a source or a step"
    if sum(target is not None for target in (sink.topic, sink.parquet, sink.table)) != 1:
        yield f"sinks.{name}", None, "topic, parquet or table, one of the three"
    if sink.partition_by and sink.kind == "topic":
        yield f"sinks.{name}.partition_by", sink.partition_by, "none, for a topic: there the key decides"
    if sink.kind != "table" and sink.mode == "complete":
        yield f"sinks.{name}.mode", sink.mode, f"append{' or update' * (sink.kind == 'topic')}: nothing is taken back"


def _wrong_subscriptions(spec: Spec) -> Iterator[Fault]:
    for query in spec.queries():
        for source in spec.sources_of(query):
            made = spec.subscription_of(query, source)
            if len(made) > limits.SUBSCRIPTION_NAME_CHARS_MAX:
                yield f"subscription of {query}", made, f"at most {limits.SUBSCRIPTION_NAME_CHARS_MAX} characters"
