"""The cache holds little, and only what the engine holds."""

from __future__ import annotations

import tracemalloc
from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from postroom.kv.cache import ENTRY_BYTES, Cache
from postroom.kv.engine import Budget, WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.limits import KEY_BYTES_MAX

CACHE_BYTES = Budget().values_bytes
ENTRIES_A_GENERATION = CACHE_BYTES // ENTRY_BYTES


def test_small_values_that_become_large_are_not_kept() -> None:
    engine = MemoryEngine()
    cache = Cache(engine)
    for number in range(100):
        cache.get(b"%d" % number)
    tracemalloc.start()
    try:
        for number in range(100):
            cache.wrote({b"%d" % number: bytes(1_000_000)})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10_000_000


def test_long_keys_are_bounded_in_bytes() -> None:
    cache = Cache(MemoryEngine())
    tracemalloc.start()
    try:
        for number in range(5000):
            cache.offer(b"%d" % number + bytes(KEY_BYTES_MAX), bytes(ENTRY_BYTES))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < CACHE_BYTES * 1.5


class _Key(bytes):
    """A key that tells how often any was looked up, or put into a set."""

    looked_up = 0

    def __hash__(self) -> int:
        _Key.looked_up += 1
        return super().__hash__()


def test_a_small_write_costs_the_same_however_much_is_held() -> None:
    cache = Cache(MemoryEngine())
    for number in range(2 * ENTRIES_A_GENERATION - 10):
        cache.get(_Key(b"%d" % number))
    _Key.looked_up = 0
    cache.wrote({b"1": b"old", b"%d" % (ENTRIES_A_GENERATION + 5): b"young", b"new": b"neither"})
    assert _Key.looked_up < 20
    assert cache.peek(b"1") == (True, b"old")
    assert cache.peek(b"%d" % (ENTRIES_A_GENERATION + 5)) == (True, b"young")
    assert cache.peek(b"new") == (False, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c"]),
            st.one_of(st.just("read"), st.none(), st.sampled_from([0, 10, ENTRY_BYTES + 1])),
        )
    )
)
def test_the_cache_agrees_with_the_engine(steps: list[tuple[bytes, object]]) -> None:
    engine = MemoryEngine()
    cache = Cache(engine)
    for number, (key, what) in enumerate(steps):
        if what == "read":
            assert cache.get(key) == engine.get(key)
            continue
        value = None if what is None else b"%d" % number + bytes(int(str(what)))
        writes: WriteSet = {key: value}
        engine.write(writes, sync=False)
        cache.wrote(writes)
        known, held = cache.peek(key)
        assert not known or held == value


@given(
    st.lists(st.integers(0, 60), max_size=40),
    st.dictionaries(st.integers(0, 60), st.sampled_from([None, b"small", bytes(2000)])),
    st.integers(0, 40),
)
def test_many_writes_leave_what_the_engine_holds(
    known: list[int], written: dict[int, bytes | None], turned_at: int
) -> None:
    """With more writes than entries it looks for its entries among the writes, not the reverse."""
    engine = MemoryEngine()
    engine.write({b"%d" % number: b"before" for number in range(0, 60, 2)}, sync=False)
    cache = Cache(engine)
    for at, number in enumerate(known):
        if at == turned_at:
            cache._begin_generation()
        cache.get(b"%d" % number)
    writes: WriteSet = {b"%d" % number: value for number, value in written.items()}
    many: WriteSet = {b"other %d" % number: b"" for number in range(100)}
    engine.write({**writes, **many}, sync=False)
    cache.wrote({**many, **writes})
    for number in range(60):
        assert cache.get(b"%d" % number) == engine.get(b"%d" % number)


class LookedUp(dict[bytes, bytes | None]):
    """A write set that nobody goes through: one of hundreds of thousands would take too long."""

    def items(self) -> NoReturn:
        raise AssertionError


def test_a_large_turn_updates_only_cached_keys() -> None:
    """The node waits for it."""
    engine = MemoryEngine()
    cache = Cache(engine)
    old, young = [[b"%s%d" % (name, number) for number in range(3)] for name in (b"old", b"young")]
    for key in old:
        cache.get(key)
    for number in range(ENTRIES_A_GENERATION - 2):
        cache.get(b"other%d" % number)
    for key in young:
        cache.get(key)
    writes = LookedUp({b"%d" % number: b"1" for number in range(ENTRIES_A_GENERATION)})
    for values in zip((b"2", None, bytes(2 * ENTRY_BYTES)), old, young, strict=True):
        writes.update(dict.fromkeys(values[1:], values[0]))
    engine.write(dict(writes), sync=False)
    cache.wrote(writes)
    for keys in (old, young):
        assert [cache.peek(key) for key in keys] == [(True, b"2"), (True, None), (False, None)]
        assert [cache.get(key) for key in keys] == [b"2", None, bytes(2 * ENTRY_BYTES)]
