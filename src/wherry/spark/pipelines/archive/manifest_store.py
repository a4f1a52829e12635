"""The place of an archive: a folder on a disk or on an object store, by its URL.

On a local disk, a file and its folder are synced before a caller learns of the file, and a hard link creates a file in
one step only if there is none. pyarrow offers no such step for an object store: there a check before and a check after
the write find another writer in most cases, not in all. Run one archive job of a topic at a time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

from wherry.model.errors import InvalidInput, StorageError


class StoredFile(NamedTuple):
    """A file, and when it was written."""

    path: str
    bytes: int
    modified_s: float


class Store(NamedTuple):
    """A folder by its URL; small, since it is sent to the tasks. Paths are relative to it."""

    url: str

    def __repr__(self) -> str:
        return f"Store({self.plain!r})"

    @property
    def plain(self) -> str:
        """The URL without user info and settings, which may be secrets. Texts and journals have only this form."""
        return plain(self.url)

    @property
    def local(self) -> Path | None:
        """The folder, if it is on a disk of this machine."""
        files, base = _opened(self.url)
        return Path(base) if isinstance(files, fs.LocalFileSystem) else None

    def under(self, folder: str) -> Store:
        """Return a folder or file below this one; settings after a `?` stay at the end."""
        parts = urlsplit(self.url)
        return Store(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(folder)}").geturl())

    def whole(self, path: str) -> str:
        """Return a path in the form of its file system."""
        return f"{_opened(self.url)[1].rstrip('/')}/{path}"

    def read(self, path: str) -> bytes:
        """Return the content of a file; raise `FileNotFoundError` if there is none."""
        with self.open(path) as stream:
            return bytes(stream.read())

    def open(self, path: str) -> Any:
        """Open a file for reading."""
        return _opened(self.url)[0].open_input_file(self.whole(path))

    @contextmanager
    def write(self, path: str) -> Iterator[Any]:
        """Create a file, durable at the end of the `with`; remove it after a failure."""
        files, place = _opened(self.url)[0], self.whole(path)
        if self.local is not None:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
        try:
            with files.open_output_stream(place) as stream:
                yield stream
        except BaseException:
            with suppress(OSError):
                files.delete_file(place)
            raise
        if self.local is not None:
            _sync(Path(place))
            _sync_folders(Path(place).parent, self.local)

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a small file, durably, unless it exists; return whether it was written."""
        if self.local is None:
            return self._put_object(path, data)
        place = self.local / path
        draft = place.parent / f".new-{secrets.token_hex(8)}"
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(data)
            _sync(draft)
            os.link(draft, place)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        _sync_folders(place.parent, self.local)
        return True

    def _put_object(self, path: str, data: bytes) -> bool:
        files, place = _opened(self.url)[0], self.whole(path)
        if files.get_file_info(place).type != fs.FileType.NotFound:
            return False
        with files.open_output_stream(place) as stream:
            stream.write(data)
        return self.read(path) == data

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the size of each file that exists."""
        found = _opened(self.url)[0].get_file_info([self.whole(path) for path in paths])
        return {path: info.size for path, info in zip(paths, found, strict=True) if info.type == fs.FileType.File}

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; none if there is no such folder."""
        files, base = _opened(self.url)
        selector = fs.FileSelector(self.whole(folder).rstrip("/"), allow_not_found=True, recursive=True)
        return [
            StoredFile(info.path[len(base.rstrip("/")) + 1 :], info.size, (info.mtime_ns or 0) / 1e9)
            for info in files.get_file_info(selector)
            if info.type == fs.FileType.File
        ]

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            _opened(self.url)[0].delete_file(self.whole(path))


def store(url: str) -> Store:
    """Return the folder at a path or URL."""
    if "://" not in url:
        if not url:
            raise InvalidInput("archive", url, "a folder, or a URL such as s3://bucket/folder")
        url = Path(url).expanduser().absolute().as_uri()
    _opened(url)
    return Store(url)


@lru_cache(maxsize=256)
def _opened(url: str) -> tuple[Any, str]:
    try:
        files, base = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError, ValueError) as fault:
        why = str(fault).replace(url, plain(url))
        raise InvalidInput("archive", plain(url), f"a folder, or a URL such as s3://bucket/folder ({why})") from None
    return files, base


def plain(url: str) -> str:
    """Return a URL without user info, settings and fragment; a path as it is.

    Examples
    --------
    >>> plain("s3://KEY:SECRET@bucket/folder?region=eu-west-1")
    's3://bucket/folder'
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as fault:
        raise StorageError(f"{path} cannot be made durable: {fault}") from fault
    finally:
        os.close(number)


def _sync_folders(folder: Path, top: Path) -> None:
    """Sync the folders from this one up to the parent of the top, which may be new itself."""
    while folder != folder.parent:
        _sync(folder)
        if folder == top.parent:
            return
        folder = folder.parent
