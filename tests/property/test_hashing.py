"""The hash of keys: equal to the formula written out for one string, and never to change."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.decide.publishing import split
from wherry.core.index.hashing import hash_strings, hash_text, ranks_of
from wherry.core.state.state import TopicState, key_hashes
from wherry.model.catalog.topic import Topic
from wherry.model.schema import Message, compact

BITS = (1 << 64) - 1
MULTIPLIER = 0x9E3779B97F4A7C15


def naive(text: str | None) -> int:
    """Return the sum of (byte + 1) * M^place, mixed with the length as in the finish of MurmurHash3."""
    data = (text or "").encode()
    total = sum((byte + 1) * pow(MULTIPLIER, place, 1 << 64) for place, byte in enumerate(data)) & BITS
    mixed = total ^ (len(data) * MULTIPLIER & BITS)
    mixed = (mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD & BITS
    mixed = (mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53 & BITS
    return mixed ^ (mixed >> 33)


texts = st.none() | st.text(max_size=12) | st.integers(1000, 1024).map(lambda count: "k" * count)


@given(st.lists(texts, max_size=20), st.integers(0, 5), st.integers(0, 20))
def test_equal_to_the_formula_also_in_slices(values, start, length):
    column = pa.array(values, pa.string()).slice(start, length)
    assert hash_strings(column).tolist() == [naive(value) for value in values[start : start + length]]


GOLDEN = [
    # key, hash, partition of 2, 7 and 65,535
    ("", 0x0000000000000000, 0, 0, 0),
    ("a", 0xACC00ACD0B4D6A1F, 1, 2, 11514),
    ("b", 0xAD24B52C294C6310, 0, 2, 61101),
    ("ab", 0x9D60520E3A7BB573, 1, 1, 57181),
    ("ba", 0x2C1C79A79D68CB3B, 1, 5, 3688),
    ("user-1", 0x649BADF4E006079D, 1, 2, 64051),
    ("user-2", 0xB000B0C98665FC57, 1, 1, 58247),
    ("order-4711", 0x48BA059E21F66881, 1, 2, 55503),
    ("ключ", 0xD42BAB4301284C3B, 1, 6, 52434),
    ("鍵", 0xBFE458264EC15B21, 1, 4, 49645),
    ("\x00", 0x25B775FAECA8F520, 0, 6, 32123),
    ("\x00\x00", 0x80E049DA094BD22E, 0, 6, 42548),
    (" ", 0x8A40EB19A3210126, 0, 1, 6562),
    ("k" * 256, 0x359E458CBD1DF730, 0, 6, 12153),
    ("z" * 1024, 0xA7F3A9B07A26AD76, 0, 0, 31041),
]


def test_no_key_ever_moves():
    """Hold the hashes as they are: keys would be placed in other partitions, so change the code back, not this list."""
    for key, expected, *partitions in GOLDEN:
        assert hash_text(key) == expected, key
        assert [expected % count for count in (2, 7, 65_535)] == partitions
        for count, partition in zip((2, 7, 65_535), partitions, strict=True):
            topic = TopicState(1, Topic(name="t", partitions=count))
            assert [part.partition for part in split(topic, compact(Message(payload=b"", key=key)), None)] == [
                partition
            ]


def test_keys_spread():
    hashes = hash_strings(pa.array([f"user-{number}" for number in range(20_000)]))
    shares = np.bincount((hashes % np.uint64(16)).astype(np.int64), minlength=16)
    assert shares.min() > 20_000 / 16 * 0.85
    assert len(np.unique(hashes)) == 20_000


def test_ranks_fit_an_index():
    ranks = ranks_of(np.array([0, BITS], np.uint64))
    assert ranks.tolist() == [0, (1 << 43) - 1]


def test_an_empty_key_is_a_key_and_none_is_not():
    assert key_hashes(pa.array([None, "", "a"]))[0] == 0
    assert (key_hashes(pa.array([None, "", "a"]))[1:] != 0).all()
    assert len(key_hashes(pa.array([], pa.string()))) == 0
