"""Bodies of a partition in memory: found in any batch, and returned in the order asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.state.bodies import Cold
from wherry.journal.bodies.partition import SLACK, CachedBatch
from wherry.journal.bodies.store import BodyStore
from wherry.model.schema import Message, compact

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=12)


def store_of(counts, order):
    """Make a store whose batches came in the given order; the body of each message is its offset, some have a key."""
    bases = np.concatenate(([0], np.cumsum(counts)))[:-1].tolist()
    store = BodyStore(None)
    for row in order:
        base, count = bases[row], counts[row]
        rows = [Message(payload=b"%d" % o, key=str(o) if row % 2 else None) for o in range(base, base + count)]
        store.put(CachedBatch(1, 0, base, compact(rows), base, base + 1, 0, base + 1))
    return store, bases


@given(sizes, st.randoms(use_true_random=False), st.data())
def test_bodies_are_found_in_any_order(counts, random, data):
    order = list(range(len(counts)))
    if data.draw(st.booleans()):
        random.shuffle(order)
    store, bases = store_of(counts, order)
    dropped = data.draw(st.sets(st.sampled_from(range(len(counts))), max_size=len(counts) - 1))
    store.drop(1, 0, [bases[row] for row in dropped])
    here = [o for row, base in enumerate(bases) if row not in dropped for o in range(base, base + counts[row])]
    asked = data.draw(st.lists(st.sampled_from(here), min_size=1, unique=True) | st.just(here))
    offsets = np.array(asked, np.int64)
    taken = store.take(1, 0, offsets, ("key", "payload", "priority"))
    assert taken.column("payload").to_pylist() == [b"%d" % o for o in asked]
    row_of = {o: row for row, base in enumerate(bases) for o in range(base, base + counts[row])}
    assert taken.column("key").to_pylist() == [str(o) if row_of[o] % 2 else None for o in asked]
    assert taken.column("priority").to_pylist() == [32_768] * len(asked)
    keyed = [2 if row_of[o] % 2 else 1 for o in asked]  # the key is the same text as the body
    assert store.sizes(1, 0, offsets).tolist() == [
        len(b"%d" % o) * times for o, times in zip(asked, keyed, strict=True)
    ]
    delivered, gate = store.deliver(1, 0, offsets, np.ones(len(offsets), np.int64))
    assert delivered.column("offset").to_pylist() == asked
    assert gate == max(bases[row_of[o]] + 1 for o in asked)
    assert store.messages(1, 0, offsets).column("published").cast("int64").to_pylist() == [
        bases[row_of[o]] for o in asked
    ]
    if dropped:
        lost = bases[min(dropped)]
        with pytest.raises(Cold) as cold:
            store.take(1, 0, np.array([lost, asked[0]], np.int64), ("payload",))
        assert cold.value.offsets.tolist() == [lost]
    rows = store.snapshot().image().cached_rows()
    assert sorted(row.base for row in rows) == [base for row, base in enumerate(bases) if row not in dropped]


def test_memory_is_counted_and_given_back():
    store, bases = store_of([3] * 40, range(40))
    full = store.cached_bytes
    store.drop(1, 0, bases[:20])
    assert 0 < store.cached_bytes < full
    assert store.snapshot().floor() == bases[20] + 1
    store.drop(1, 0, bases)
    assert (store.cached_bytes, store.snapshot().floor()) == (0, None)
    store.drop(1, 0, [7, 99])
    store.drop(2, 0, [0])


def test_one_old_batch_does_not_keep_the_rows_behind_it():
    store, bases = store_of([2] * 100, range(100))
    bodies = store._bodies_of(1, 0)
    for left, base in zip(range(99, 0, -1), bases[1:50] + bases[51:], strict=False):
        store.drop(1, 0, [base, base])
        assert len(bodies._slots) <= 2 * left + SLACK
    here = np.array([1, 101, 0, 100], np.int64)
    assert store.take(1, 0, here, ("payload",)).column(0).to_pylist() == [b"1", b"101", b"0", b"100"]
    for gone in (2, 99, 102, 199):
        with pytest.raises(Cold):
            store.take(1, 0, np.array([gone], np.int64), ("payload",))
    store.put(CachedBatch(1, 0, 500, compact([Message(payload=b"new")]), 0, 501, 0, 501))
    assert store.take(1, 0, np.array([500], np.int64), ("payload",)).column(0).to_pylist() == [b"new"]
