"""A row batch and the Arrow batch of the same messages are the same messages."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.broker.commit.batches import CallerRows, columns, row_batch
from wherry.journal import codec
from wherry.model import ops
from wherry.model.calls.rows import Handling, Rows
from wherry.model.limits import ENVELOPE_BYTES_MAX, PRIORITY_MAX, TIME_MS_MAX
from wherry.model.ops import Entry
from wherry.model.row_batch import AS_ROWS, ROWS_MAX, RowBatch, of_bodies, of_payloads
from wherry.model.schema import compact, content_bytes, content_sizes, presence

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
rows = st.builds(
    Rows,
    st.lists(st.binary(max_size=20), min_size=1, max_size=3),
    st.none() | st.binary(max_size=9),
    st.none() | texts,
    st.none() | st.lists(st.tuples(texts, texts), max_size=3, unique_by=lambda pair: pair[0]),
)
handlings = st.builds(
    Handling,
    st.just(True),
    st.none() | st.integers(0, PRIORITY_MAX),
    st.none() | st.integers(0, TIME_MS_MAX),
    st.none() | st.integers(0, TIME_MS_MAX),
)
runs = st.lists(st.builds(CallerRows, rows, handlings, st.none(), st.just(False)), min_size=1, max_size=4)


@given(runs)
def test_a_row_batch_is_the_batch_that_columns_would_be(given_runs):
    made, wanted = row_batch(given_runs), compact(columns(given_runs))
    assert made is not None
    assert made.batch == wanted
    assert made.batch.schema == wanted.schema
    assert (made.columns, made.num_rows) == (presence(wanted), wanted.num_rows)
    assert (made.size, made.sizes) == (content_bytes(wanted), content_sizes(wanted).tolist())


@given(runs)
def test_the_journal_gives_a_row_batch_back(given_runs):
    made = row_batch(given_runs)
    assert made is not None
    publish = ops.Publish(1, 0, 0, made.num_rows, made.columns | AS_ROWS, made.size)
    parts, size, kept = codec.encode(Entry(1, [publish], [made]))
    body = b"".join(parts)
    assert (len(body), kept.batches) == (size, [made])
    (got,) = codec.decode(pa.py_buffer(body)).batches
    assert isinstance(got, RowBatch)
    assert (got.columns, got.values, got.sizes) == (made.columns, made.values, made.sizes)
    assert got.batch == made.batch


@pytest.mark.parametrize(
    ("given_rows", "handling"),
    [
        (Rows([b"x"], id="mine"), Handling(True)),
        (Rows([b"x"], envelope=bytes(ENVELOPE_BYTES_MAX + 1)), Handling(True)),
        (Rows([b"x"], key="\ud800"), Handling(True)),
        (Rows([b"x"], headers=[("a", "1"), ("a", "2")]), Handling(True)),
        (Rows([b"x"], headers=[("a", "\ud800")]), Handling(True)),
        (Rows([b"x"]), Handling(True, priority=PRIORITY_MAX + 1)),
        (Rows([b"x"]), Handling(True, due=-1)),
        (Rows([b"x"] * (ROWS_MAX + 1)), Handling(True)),
    ],
)
def test_what_has_to_be_checked_as_columns_is_no_row_batch(given_rows, handling):
    assert row_batch([CallerRows(given_rows, handling, None, False)]) is None


@pytest.mark.parametrize("bodies", [[], [[b"a"], [b"b"]], [[b"a", b"b"], [b"c"]]])
def test_bodies_that_are_no_row_batch_are_refused(bodies):
    columns = of_payloads([b"a"]).columns if len(bodies) != 2 or len(bodies[0]) == 1 else 0b11000000
    with pytest.raises(ValueError, match=r"zip|lengths"):
        of_bodies(columns | AS_ROWS, bodies)
