"""What version 1 wrote must always open and give exactly its values."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.golden import make_entries_v1 as made
from tests.golden.entries_v1 import ADDED, AT_US, ENTRIES, MESSAGES, PLAIN, WHOLE
from wherry.core.index.table import OffsetTable
from wherry.core.state import snapshot
from wherry.core.state.partition import ENDS
from wherry.core.state.state import State
from wherry.journal import checkpoint, codec
from wherry.journal.bodies.segments import segment
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.store import BodyStore
from wherry.journal.disk.real_files import RealFiles
from wherry.model import ops
from wherry.model.errors import Corrupt
from wherry.model.row_batch import RowBatch
from wherry.model.schema import MESSAGE


def plain(value: object) -> object:
    """Turn structs and arrays into values that compare."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, snapshot.Column):
        return value.joined().tolist()
    if isinstance(value, snapshot.DirectoryImage):
        return value.opened().columns().tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return [type(value).__name__, *(plain(getattr(value, name)) for name in value.__struct_fields__)]
    return value


def shown(batch: pa.RecordBatch | RowBatch) -> object:
    return (batch.columns, batch.values, batch.sizes) if isinstance(batch, RowBatch) else batch


def test_there_is_an_entry_of_every_operation():
    kinds = {kind.__struct_config__.tag for kind in get_args(ops.AnyOp)}
    assert set(ENTRIES) == kinds
    assert {path.name for path in made.FOLDER.iterdir()} == kinds
    assert {path.name for path in made.ADDED_FOLDER.iterdir()} == set(ADDED)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_opens_and_gives_its_values(name):
    got, wanted = codec.decode(pa.py_buffer(made.FOLDER.joinpath(name).read_bytes())), ENTRIES[name]
    assert got.at_us == AT_US
    assert plain(got.ops) == plain(wanted.ops)
    columns = [batch for batch in got.batches if not isinstance(batch, RowBatch)]
    assert [batch.schema for batch in columns] == [batch.schema for batch in wanted.batches]  # type: ignore[union-attr]
    assert columns == wanted.batches
    for batch in columns:
        batch.validate(full=True)


@pytest.mark.parametrize("name", ADDED)
def test_an_entry_with_fields_that_came_later_gives_their_values(name):
    got = codec.decode(pa.py_buffer(made.ADDED_FOLDER.joinpath(name).read_bytes()))
    assert plain(got.ops) == plain(ADDED[name].ops)
    assert list(map(shown, got.batches)) == list(map(shown, ADDED[name].batches))


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_written_today_is_read_today(name):
    """Write and read an entry, which need not be the same bytes: a later version may add fields at the end."""
    got = codec.decode(pa.py_buffer(made.entry_bytes(ENTRIES[name])))
    assert plain(got.ops) == plain(ENTRIES[name].ops)
    assert got.batches == ENTRIES[name].batches


@pytest.mark.parametrize("name", ["pub", "open"])
def test_a_short_entry_is_no_entry(name):
    data = made.FOLDER.joinpath(name).read_bytes()
    control = 4 + int.from_bytes(data[:4], "little")
    for length in range(control):
        with pytest.raises(codec.Undecodable):
            codec.decode(pa.py_buffer(data[:length]))


def test_an_operation_of_a_later_version_is_no_entry():
    body = msgspec.msgpack.encode([AT_US, [["levitate", 1]], []])
    with pytest.raises(codec.Undecodable, match="levitate"):
        codec.decode(pa.py_buffer(len(body).to_bytes(4, "little") + body))


@pytest.mark.parametrize("path", made.CHECKPOINTS, ids=lambda path: path.name)
def test_the_checkpoint_opens_and_gives_the_state(path):
    point = checkpoint.decode("golden", path.read_bytes())
    wanted = made.made_checkpoint()
    assert (point.position, point.floor, point.staged) == (wanted.position, wanted.floor, wanted.staged)
    assert plain(point.store) == plain(wanted.store)
    state = State(BodyStore(None))
    snapshot.load(state, point.state)
    lived = made.lived()
    for topic in lived.topics.values() if path != made.CHECKPOINT else ():
        for partition in topic.partitions.values():  # how messages ended was not kept then: a removed one is just gone
            partition.ends, partition.ends_unknown_below = OffsetTable(ENDS), partition.next_offset
    assert snapshot.digest(state) == snapshot.digest(lived)


@pytest.mark.parametrize("path", made.CHECKPOINTS, ids=lambda path: path.name)
def test_the_state_of_the_checkpoint_is_what_it_was(path):
    """Compare by hand, so that a change of both sides at once is noticed."""
    state = State(BodyStore(None))
    snapshot.load(state, checkpoint.decode("golden", path.read_bytes()).state)
    fifo, ranked = state.topic("fifo"), state.topic("p")
    assert (fifo.messages, fifo.dead, ranked.messages, ranked.dead) == (6, 2, 1, 1)
    first, second = fifo.partitions[0], fifo.partitions[1]
    assert (first.next_offset, first.released.within(0, 6).tolist(), first.version(5)) == (6, [1, 2], 2)
    assert second.next_offset == 4
    assert first.directory.columns().T.tolist() == [
        [0, 3, 1, 1, 11, AT_US + 1],
        [3, 2, 2, 0, 11, AT_US + 4],
        [5, 1, 1, 1, 40, AT_US + 8],
    ]
    assert second.directory.columns().T.tolist() == [[0, 2, 2, 2, 11, AT_US + 2], [2, 2, 2, 2, 11, AT_US + 9]]
    reader = state.subscription("fifo", "a").readers[0]
    assert [reader.state_of(offset, AT_US // 1000) for offset in range(6)] == [
        *("scheduled", "settled", "settled", "settled", "settled", "waiting")
    ]
    assert reader.attempts(np.array([0])).tolist() == [1]
    assert ranked.producers.repeated("p", 5, 2) is not None
    assert list(state.catalog.routes) == ["r"]
    assert (list(state.stages.open), list(state.stages.committed)) == (["open"], ["done"])


def test_the_checkpoint_that_is_written_today_is_read_today():
    point = checkpoint.decode("today", made.checkpoint_bytes())
    assert plain(point) == plain(made.made_checkpoint())


@pytest.mark.parametrize("at", [0, 5, 12, 17, 21, 24, 300, -1])
def test_a_flipped_bit_of_a_checkpoint_is_noticed(at):
    data = bytearray(made.CHECKPOINT.read_bytes())
    data[at] ^= 1
    with pytest.raises(Corrupt, match="golden at byte"):
        checkpoint.decode("golden", data)


@pytest.mark.parametrize("length", [0, 23, 24, 500])
def test_a_cut_checkpoint_is_noticed(length):
    with pytest.raises(Corrupt, match="golden at byte"):
        checkpoint.decode("golden", made.CHECKPOINT.read_bytes()[:length])


def test_a_checkpoint_of_a_later_version_is_named():
    body = b"\x90"
    head = checkpoint._HEAD.pack(b"WHCP", 3, len(body), google_crc32c.value(body))
    data = head + checkpoint._CRC.pack(google_crc32c.value(head)) + body
    with pytest.raises(Corrupt, match="version 3 is newer than this Wherry reads"):
        checkpoint.decode("golden", data)


def test_the_segment_opens_with_plain_pyarrow():
    with pa.OSFile(str(made.SEGMENT)) as file:
        reader = pa.ipc.open_file(file)
        assert reader.schema == MESSAGE
        assert reader.schema.metadata == {b"wherry.schema": b"1"}
        table = reader.read_all()
    assert reader.num_record_batches == 3
    assert table.column("offset").to_pylist() == [0, 1, 5, 7, 8, 9]
    bodies = [batch.column("payload").to_pylist() for batch in (PLAIN, MESSAGES, WHOLE)]
    assert table.column("payload").to_pylist() == [payload for each in bodies for payload in each]
    assert table.column("id").to_pylist() == [None, None, None, "mine", None, "i"]
    assert table.column("key").to_pylist() == [None, None, None, "k", "", "schlüssel"]
    assert table.column("priority").to_pylist() == [32_768, 32_768, 32_768, 0, 65_535, 7]
    assert table.column("due").cast(pa.int64()).to_pylist() == [None, None, None, 0, None, 1]
    assert table.column("published").cast(pa.int64()).to_pylist() == [AT_US] * 3 + [AT_US + 1, AT_US + 2, AT_US]
    assert table.column("headers").to_pylist()[3:] == [[("h", "1"), ("", "2")], None, [("n", "v")]]
    assert table.column("mac").to_pylist()[5] == bytes(range(32))


def sealed(root: Path) -> Segment:
    return asyncio.run(made.written(root))


def test_the_same_segment_is_still_written(tmp_path):
    made_now = sealed(tmp_path)
    with pa.OSFile(str(made.SEGMENT)) as old, pa.OSFile(str(tmp_path / made_now.path)) as new:
        assert pa.ipc.open_file(new).read_all() == pa.ipc.open_file(old).read_all()
    assert made_now.bytes == tmp_path.joinpath(made_now.path).stat().st_size
    assert made_now.blocks[:3].tolist() == [[0, 7, 9], [5, 8, 9], [3, 2, 1]]
    assert (made_now.first, made_now.last, made_now.rows) == (0, 9, 6)
    assert segment.from_image(made_now.image()).blocks.tolist() == made_now.blocks.tolist()


def test_the_blocks_of_the_segment_are_read_one_by_one(tmp_path):
    """Read by the table that a checkpoint keeps; a flipped bit is noticed in its own block only."""
    table = sealed(tmp_path)
    path = tmp_path / table.path
    data = bytearray(path.read_bytes())
    data[int(table.blocks[3, 1]) + 200] ^= 1
    path.write_bytes(data)

    async def read(number: int) -> pa.RecordBatch:
        files = RealFiles(tmp_path)
        files.lock()
        try:
            return await segment.read_block(files, table, number)
        finally:
            files.unlock()

    batches = made.segment_batches()
    assert asyncio.run(read(0)) == batches[0]
    assert asyncio.run(read(2)) == batches[2]
    with pytest.raises(Corrupt, match=f"{table.path} at byte {table.blocks[3, 1]}: block 1 of the segment"):
        asyncio.run(read(1))
    assert table.blocks_for(np.array([6, 7])).tolist() == [1]
    assert table.blocks_for(np.array([0, 9, 99])).tolist() == [0, 2]
