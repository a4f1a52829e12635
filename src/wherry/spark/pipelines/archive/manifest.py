"""The content of a topic's archive: a sequence of commits, each a small JSON file that is written once.

```
<archive>/topic=orders/_manifest/00000000000000000001.json     begin: the subscription that holds the log back
                       _manifest/00000000000000000002.json     append: offsets that are covered now, and their files
                       _manifest/00000000000000000003.json     compact: files in the place of others, the same rows
                       date=2027-01-31/p00000-o….parquet
```

A file that no commit names is not part of the archive: a job that died left it. The archive covers one range of each
partition without a gap, and the next append begins where the range ends. Every 50th commit holds the whole state, so
that a reader reads few commits.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from wherry.model.errors import Corrupt, InvalidInput, StorageError, WherryError
from wherry.spark.pipelines.archive.manifest_store import Store

VERSION = 1
STATE_EVERY = 50
FOLDER = "_manifest"
NAME_MAX = 180

Kind = Literal["begin", "append", "compact"]
OffsetRange = tuple[int, int]
"""Offsets from the first up to the second, which is not included."""

_NUMBERED = re.compile(rf"{FOLDER}/(\d{{20}})\.json")


class Conflict(WherryError):
    """Another job changed the archive in between."""

    code = "conflict"


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one partition, published on one day, in ascending order of offset; offsets in between may be missing."""

    path: str
    partition: int
    date: str
    first: int
    last: int
    rows: int
    bytes: int
    content: int
    """Bytes of the messages' content, not compressed."""
    sum: str
    """`manifest_sums.total` of the rows, as 16 hexadecimal digits."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The state after a commit."""

    topic: str
    subscription: str
    number: int
    covered: dict[int, OffsetRange] = {}
    files: list[ArchiveFile] = []
    replaced: dict[str, int] = {}
    """Files that were compacted away, and when, until they are removed: readers may still have them open."""
    lost: list[tuple[int, int, int]] = []
    """Partitions and offsets of messages that were gone before they were archived."""

    def end(self, partition: int) -> int | None:
        """Return the offset after the archived part; None if nothing of the partition was archived."""
        covered = self.covered.get(partition)
        return None if covered is None else covered[1]

    def ends(self) -> dict[int, int]:
        """Return the offset after the archived part of each partition that has one."""
        return {partition: stop for partition, (_, stop) in self.covered.items()}

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def sum(self) -> int:
        """The sum of all rows."""
        return sum(int(file.sum, 16) for file in self.files) & ((1 << 64) - 1)


class ManifestCommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of an archive, as a file of its manifest holds it."""

    version: int
    number: int
    at_ms: int
    kind: Kind
    topic: str
    token: str
    """The token of the job, so that no two commits have the same bytes."""
    subscription: str = ""
    covers: dict[int, OffsetRange] = {}
    added: list[ArchiveFile] = []
    removed: list[str] = []
    gone: list[str] = []
    """Files that were replaced before and no longer exist, so that the manifest can drop them."""
    lost: list[tuple[int, int, int]] = []
    state: Manifest | None = None
    """The whole state after this commit, in every 50th."""


def folder(topic: str) -> str:
    """Return the folder of a topic; a very long name is cut, and a digest makes it unique."""
    name = quote(topic, safe="")
    if len(name) > NAME_MAX:
        name = f"{name[: NAME_MAX - 17]}-{hashlib.sha256(topic.encode()).hexdigest()[:16]}"
    return f"topic={name}"


def load(store: Store) -> Manifest | None:
    """Return the manifest in the folder of a topic; None if there is none."""
    found = (_NUMBERED.fullmatch(entry.path) for entry in store.list(FOLDER))
    numbers = sorted(int(match[1]) for match in found if match)
    if not numbers:
        return None
    commits: list[ManifestCommit] = []
    manifest: Manifest | None = None
    for number in reversed(numbers):
        if commits and number != commits[-1].number - 1:
            break
        commit = _read(store, number)
        manifest = commit.state
        if manifest is not None:
            break
        commits.append(commit)
    if manifest is None and commits[-1].number != 1:
        raise Corrupt(store.whole(FOLDER), commits[-1].number - 1, "this commit is missing")
    for commit in reversed(commits):
        manifest = _applied(manifest, commit)
    return manifest


def need(store: Store, topic: str) -> Manifest:
    """Return the manifest in the folder of a topic; raise `InvalidInput` if there is none."""
    manifest = load(store)
    if manifest is None:
        raise InvalidInput("archive", store.plain, f"an archive of topic {topic!r}; wherry pipeline archive makes one")
    return manifest


def begun(store: Store, topic: str, subscription: str, token: str) -> Manifest:
    """Return the manifest of a topic; create it if there is none."""
    manifest = load(store)
    if manifest is None:
        first = _commit(1, "begin", topic, token, subscription=subscription)
        store.put_new(_path(1), msgspec.json.encode(first))  # if another job wrote it first, its commit counts
        manifest = need(store, topic)
    if manifest.topic != topic:
        raise Corrupt(store.whole(FOLDER), manifest.number, f"this is an archive of {manifest.topic!r}, not {topic!r}")
    return manifest


def append(
    store: Store,
    token: str,
    covers: dict[int, OffsetRange],
    files: list[ArchiveFile],
    lost: list[tuple[int, int, int]],
    gone: Sequence[str] = (),
) -> Manifest:
    """Cover more offsets; raise `Conflict` if they do not begin where the archive ends now."""
    while True:
        manifest = _present(store)
        for partition, (start, _) in covers.items():
            end = manifest.end(partition)
            if end is not None and end != start:
                what = f"offsets {start} to {end} of partition {partition} in between"
                raise Conflict(
                    f"another job archived {what}; nothing is lost: run this one again when that one is done"
                )
        _check_there(store, files)
        changes = {"covers": covers, "added": files, "lost": lost, "gone": list(gone)}
        commit = _commit(manifest.number + 1, "append", manifest.topic, token, **changes)
        made = _put(store, manifest, commit)
        if made is not None:
            return made


def compact(store: Store, token: str, removed: list[ArchiveFile], files: list[ArchiveFile]) -> Manifest:
    """Replace files by others with the same rows; raise `Conflict` if the files to replace are no longer there."""
    if _rows(removed) != _rows(files):
        raise Corrupt(store.plain, 0, f"compaction read {_rows(removed)} and wrote {_rows(files)}: rows and sum differ")
    while True:
        manifest = _present(store)
        here = {file.path for file in manifest.files}
        if not all(file.path in here for file in removed):
            raise Conflict("another job compacted the same files in between")
        _check_there(store, files)
        paths = [file.path for file in removed]
        commit = _commit(manifest.number + 1, "compact", manifest.topic, token, added=files, removed=paths)
        made = _put(store, manifest, commit)
        if made is not None:
            return made


def _check_there(store: Store, files: list[ArchiveFile]) -> None:
    """Raise unless the driver sees the files: an executor may have written them to a disk of its own."""
    sizes = store.sizes([file.path for file in files])
    for file in files:
        if sizes.get(file.path) != file.bytes:
            seen = f"{sizes[file.path]} bytes" if file.path in sizes else "no file"
            raise StorageError(
                f"{store.whole(file.path)}: a task wrote {file.bytes} bytes, and there is {seen} where the manifest is"
                " kept; driver and executors must see the same folder, shared or on an object store"
            )


def _rows(files: list[ArchiveFile]) -> tuple[int, str]:
    return sum(file.rows for file in files), f"{sum(int(file.sum, 16) for file in files) & ((1 << 64) - 1):016x}"


def _present(store: Store) -> Manifest:
    manifest = load(store)
    if manifest is None:
        raise Conflict("the archive was removed in between")
    return manifest


def _put(store: Store, before: Manifest, commit: ManifestCommit) -> Manifest | None:
    after = _applied(before, commit)
    if commit.number % STATE_EVERY == 0:
        commit = msgspec.structs.replace(commit, state=after)
    return after if store.put_new(_path(commit.number), msgspec.json.encode(commit)) else None


def _commit(number: int, kind: Kind, topic: str, token: str, **fields: Any) -> ManifestCommit:
    at_ms = int(time.time() * 1_000)
    return ManifestCommit(version=VERSION, number=number, at_ms=at_ms, kind=kind, topic=topic, token=token, **fields)


def _applied(before: Manifest | None, commit: ManifestCommit) -> Manifest:
    if before is None:
        before = Manifest(topic=commit.topic, subscription=commit.subscription, number=0)
    covered = dict(before.covered)
    for partition, (start, stop) in commit.covers.items():
        covered[partition] = (covered.get(partition, (start, start))[0], stop)
    removed, forgotten = set(commit.removed), set(commit.gone)
    files = [file for file in before.files if file.path not in removed] + commit.added
    replaced = before.replaced | dict.fromkeys(commit.removed, commit.at_ms)
    return Manifest(
        topic=before.topic,
        subscription=before.subscription,
        number=commit.number,
        covered=covered,
        files=sorted(files, key=lambda file: (file.partition, file.first)),
        replaced={path: at_ms for path, at_ms in replaced.items() if path not in forgotten},
        lost=before.lost + commit.lost,
    )


def _path(number: int) -> str:
    return f"{FOLDER}/{number:020}.json"


def _read(store: Store, number: int) -> ManifestCommit:
    data = store.read(_path(number))
    try:
        commit = msgspec.json.decode(data, type=ManifestCommit)
    except msgspec.MsgspecError as fault:
        raise Corrupt(store.whole(_path(number)), 0, str(fault)) from None
    if commit.version != VERSION or commit.number != number:
        why = f"version {commit.version}, number {commit.number}; a newer Wherry may have written it"
        raise Corrupt(store.whole(_path(number)), 0, why)
    return commit
