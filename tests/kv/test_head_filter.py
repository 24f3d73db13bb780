"""The filter of heads saves look-ups of new keys, and hides no key that is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.kv import keys
from postroom.kv.background import InlineStateWriter
from postroom.kv.engine import WriteSet
from postroom.kv.gathering import Gathering
from postroom.kv.head_filter import HEADS_A_BYTE, HeadFilter
from postroom.kv.memory import MemoryDisk, MemoryEngine

FILTER_BYTES = 4096


class Counting(MemoryEngine):
    """An engine that counts the keys that it is asked for."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.gets = 0

    def get(self, key: bytes, /) -> bytes | None:
        self.gets += 1
        return super().get(key)


class Gathered:
    """An engine that is empty at first, and the writes that are gathered for it."""

    def __init__(self, disk: MemoryDisk | None = None, heads_bytes: int = FILTER_BYTES) -> None:
        self.engine = Counting(disk or MemoryDisk())
        writer = InlineStateWriter()
        self.gathering = Gathering(self.engine, 8, lambda _: None, writer, heads_bytes)

    def write(self, numbers: range) -> None:
        self.gathering.write({head(number): b"value" for number in numbers}, sync=False)

    def gets(self, numbers: range) -> int:
        """Count the keys that the engine is asked for."""
        before = self.engine.gets
        for number in numbers:
            self.gathering.look_up(head(number))
        return self.engine.gets - before


def head(number: int) -> bytes:
    return keys.head_key(b"key/%06d" % number)


@pytest.fixture
def gathered() -> Gathered:
    """Return an empty one."""
    return Gathered()


def test_the_engine_is_asked_for_few_keys_that_are_new(gathered: Gathered) -> None:
    gathered.write(range(2000))
    assert gathered.gets(range(2000)) == 2000
    assert gathered.gets(range(10_000, 20_000)) < 1000


def test_the_small_part_is_enough_for_few_heads(gathered: Gathered) -> None:
    gathered.write(range(100))
    assert len(gathered.gathering._heads._large) == 1  # type: ignore[union-attr]
    assert gathered.gets(range(100)) == 100
    assert gathered.gets(range(10_000, 20_000)) < 1000


def test_heads_from_before_the_large_part_are_found(gathered: Gathered) -> None:
    gathered.write(range(100))
    gathered.write(range(1000, 3000))
    assert len(gathered.gathering._heads._large) > 1  # type: ignore[union-attr]
    assert gathered.gets(range(100)) == 100


def test_a_filter_that_tells_too_little_is_given_up(gathered: Gathered) -> None:
    for first in range(0, 4 * HEADS_A_BYTE * FILTER_BYTES, 1000):
        gathered.write(range(first, first + 1000))
    assert gathered.gathering._heads is None
    assert gathered.gets(range(100_000, 100_100)) == 100


def test_an_engine_that_has_data_is_asked_for_every_key() -> None:
    disk = MemoryDisk()
    before = Gathered(disk)
    before.write(range(100))
    before.engine.close()
    again = Gathered(disk)
    assert again.gathering.look_up(head(1)) == b"value"
    assert again.gets(range(10_000, 10_100)) == 100


def test_a_filter_that_is_asked_for_known_keys_looks_for_few_of_them() -> None:
    heads = HeadFilter(1 << 20)
    heads.add([head(number) for number in range(100)])
    for number in range(1000):
        assert not heads.lacks(head(number % 100))
    skipped, answered = range(10_000, 10_022), range(20_000, 21_000)
    assert not any(heads.lacks(head(number)) for number in skipped)
    assert sum(heads.lacks(head(number)) for number in answered) > 900


def test_other_keys_than_heads_are_asked_for(gathered: Gathered) -> None:
    history = keys.history_key(head(1), bytes(8))
    gathered.write(range(1))
    before = gathered.engine.gets
    assert gathered.gathering.look_up(history) is None
    assert gathered.engine.gets == before + 1


KEYS = st.integers(0, 40).map(head) | st.binary(min_size=1, max_size=3)
BATCHES = st.lists(
    st.tuples(
        st.dictionaries(KEYS, st.none() | st.binary(max_size=2), max_size=30), st.integers(0, 2)
    ),
    max_size=20,
)


@given(BATCHES, st.sampled_from([32, 4096]))
def test_a_read_finds_the_newest_write_whatever_came_before(
    batches: list[tuple[WriteSet, int]], heads_bytes: int
) -> None:
    gathered, expected = Gathered(heads_bytes=heads_bytes), WriteSet()
    for writes, how in batches:
        expected.update(writes)
        if how:
            gathered.gathering.write(dict(writes), sync=False)
        else:
            gathered.gathering.add(dict(writes))
        if how == 1:
            gathered.gathering.flush()
        for key in [*expected, *map(head, range(50))]:
            assert gathered.gathering.look_up(key) == expected.get(key)
            assert gathered.gathering.get(key) == expected.get(key)
