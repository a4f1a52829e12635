"""Bodies of entries: the bytes of Arrow's own writer, without copying what need not be copied."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from wherry.journal.bodies.body import COPIED_BYTES_MAX, adopt
from wherry.model.schema import compact

ROWS = 1_000


def batch(rows: int = ROWS) -> pa.RecordBatch:
    return compact(
        pa.record_batch(
            {
                "payload": pa.array([os.urandom(256) for _ in range(rows)], pa.binary()),
                "key": [None if row % 3 else f"k{row}" for row in range(rows)],
                "priority": pa.array(np.arange(rows), pa.uint16()),
                "headers": pa.array([[("a", "b")]] * rows, pa.map_(pa.string(), pa.string())),
            }
        )
    )


def payload_address(given: pa.RecordBatch) -> int:
    return int(given.column("payload").buffers()[2].address)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(batch(), id="whole"),
        pytest.param(batch().slice(7, 700), id="cut out"),
        pytest.param(batch().slice(990), id="small"),
        pytest.param(batch().select(["payload"]), id="payloads only"),
    ],
)
def test_the_bytes_are_those_of_arrows_own_writer(given: pa.RecordBatch):
    kept, parts, size = adopt(given)
    written = b"".join(bytes(memoryview(part)) for part in parts)
    assert size == len(written)
    assert written == given.serialize().to_pybytes()
    assert kept.equals(given)


def test_payloads_are_kept_where_they_are():
    given = batch()
    kept, parts, _ = adopt(given)
    assert payload_address(kept) == payload_address(given)
    assert any(isinstance(part, pa.Buffer) and part.address == payload_address(given) for part in parts)


def test_numbers_in_the_memory_of_numpy_are_copied():
    ranks = np.arange(ROWS, dtype=np.uint16)
    given = compact(pa.record_batch({"payload": batch().column("payload"), "priority": pa.array(ranks)}))
    kept, _, _ = adopt(given)
    ranks[:] = 0
    assert kept.column("priority").to_pylist() == list(range(ROWS))


def test_a_few_rows_do_not_hold_on_to_a_huge_table():
    huge = batch(10_000)
    kept, _, _ = adopt(huge.slice(0, 2 * COPIED_BYTES_MAX // 256))
    assert payload_address(kept) != payload_address(huge)


def test_a_small_message_does_not_hold_on_to_the_request_it_came_in():
    request = pa.py_buffer(batch(10_000).serialize().to_pybytes())
    whole = pa.ipc.read_record_batch(request, batch(1).schema)
    kept, _, _ = adopt(whole.slice(100, 300))
    assert not request.address <= payload_address(kept) < request.address + request.size


def test_where_payloads_begin_is_copied():
    ends = np.arange(0, (ROWS + 1) * 256, 256, dtype=np.int32)
    data = pa.py_buffer(os.urandom(ROWS * 256))
    column = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(ends), data])
    for given in (column, column.slice(7, 700)):
        ends[:] = np.arange(0, (ROWS + 1) * 256, 256)
        wanted = given.to_pylist()
        kept, _, _ = adopt(compact(pa.record_batch({"payload": given})))
        ends[1:] = 0
        assert kept.column("payload").to_pylist() == wanted
