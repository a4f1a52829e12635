"""A checkpoint is the same bytes whether its columns are copied into it or written from where they are."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from wherry.core.index.directory import Directory
from wherry.core.state import snapshot
from wherry.core.state.snapshot import Column, DirectoryImage, ReaderImage, SetImage
from wherry.core.state.state import State
from wherry.journal import checkpoint
from wherry.journal.bodies.image import StoreImage
from wherry.journal.bodies.store import BodyStore
from wherry.journal.checkpoint import Checkpoint
from wherry.journal.codec import pack_array


@pytest.mark.parametrize("rows", [0, 1, 8_191, 8_192, 70_000])
def test_large_columns_are_written_as_msgpack_has_them(rows):
    cached = np.arange(rows, dtype=np.int64)
    point = Checkpoint(3, 1, snapshot.dump(State(BodyStore(None))), StoreImage([], cached), [("k", 0, 1, 0)])
    head, *body = checkpoint.encode(point)
    assert (len(body) > 1) == (rows * 8 >= checkpoint.LARGE_BYTES)
    assert b"".join(body) == msgspec.msgpack.encode(point, enc_hook=pack_array)
    again = checkpoint.decode("test", b"".join([head, *body]))
    assert again.store.cached.tolist() == cached.tolist()
    assert (again.position, again.floor, again.staged) == (3, 1, [("k", 0, 1, 0)])


@pytest.mark.parametrize("counts", [[], [0], [3], [2, 0, 5], [9_000, 1, 20_000]])
def test_a_column_in_pieces_is_one_column_on_disk(counts):
    pieces = [np.arange(count, dtype=np.int64) for count in counts]
    none = np.empty(0, np.int64)
    reader = ReaderImage(1, 0, SetImage(0, b""), none, b"", none, Column(pieces), Column(pieces[::-1]), None)
    parts = checkpoint._body(reader)
    again = msgspec.msgpack.decode(b"".join(parts), type=ReaderImage, dec_hook=checkpoint._unpack)
    assert again.rank.joined().tolist() == [value for piece in pieces for value in piece.tolist()]
    assert again.offset.joined().tolist() == [value for piece in pieces[::-1] for value in piece.tolist()]


@pytest.mark.parametrize("batches", [0, 1, 1_500, 9_000])
def test_a_directory_is_one_string_of_bytes_on_disk(batches):
    directory = Directory()
    for number in range(batches):
        directory.append(3 * number, 1 + number % 3, number % 500, 1_700_000_000_000_000 + number * 1_000_000)
    directory.finish(np.arange(0, 3 * batches // 2, 3))
    parts = checkpoint._body([DirectoryImage(directory.bytes_pieces())])
    assert (len(parts) > 1) == (batches == 9_000)
    (again,) = msgspec.msgpack.decode(b"".join(parts), type=list[DirectoryImage], dec_hook=checkpoint._unpack)
    assert again.opened().columns().tolist() == directory.columns().tolist()
    assert sum(map(len, parts)) <= 100 + 18 * batches
