"""Scans jump over runs of deleted keys, and return what they would return without that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.kv import keys, versions
from postroom.kv.cache import GAP_KEYS_MIN, GAPS_KEPT, Cache, Gaps
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.ranges.evaluation import Blocked, View

MANY = 3000
NOW = keys.u64(1_000_000)


class Counting(MemoryEngine):
    """An engine that counts the pairs that are gone through."""

    visited = 0

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for pair in super().iterate(lower, upper, reverse=reverse):
            self.visited += 1
            yield pair


class Keys:
    """Keys with one version each, in an engine, and the gaps that scans have met."""

    def __init__(self) -> None:
        self.engine = Counting()
        self.cache = Cache(self.engine)

    def write(self, kind: bytes, stamp: int, *names: bytes) -> None:
        writes: WriteSet = {keys.head_key(name): kind + keys.u64(stamp) + b"v" for name in names}
        self.engine.write(writes, sync=False)
        self.cache.wrote(writes)

    def put(self, stamp: int, *names: bytes) -> None:
        self.write(versions.VALUE_KIND, stamp, *names)

    def delete(self, stamp: int, *names: bytes) -> None:
        self.write(versions.TOMBSTONE_KIND, stamp, *names)

    def collect(self, *names: bytes) -> None:
        writes: WriteSet = {keys.head_key(name): None for name in names}
        self.engine.write(writes, sync=False)
        self.cache.wrote(writes)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        at: bytes = NOW,
        page: int = 1000,
    ) -> list[bytes]:
        """Return all keys of a span, page by page."""
        found: list[bytes] = []
        while True:
            answer = versions.scan(
                self.cache, start, end, at, pairs_max=page, bytes_max=1 << 20, reverse=reverse,
                steps_max=page, gaps=self.cache.gaps,
            )  # fmt: skip
            found += [key for key, _ in answer.pairs]
            if answer.resume is None:
                return found
            start, end = (start, answer.resume) if reverse else (answer.resume, end)

    def steps(self, **scan: bool) -> int:
        """Return how many pairs a scan goes through."""
        before = self.engine.visited
        self.scan(**scan)
        return self.engine.visited - before


def name(number: int) -> bytes:
    return b"%06d" % number


def deleted_in_between() -> Keys:
    stored = Keys()
    stored.put(1, b"0", b"9")
    stored.delete(2, *(name(number) for number in range(100_000, 100_000 + MANY)))
    return stored


def test_the_second_scan_jumps_over_what_the_first_one_stepped_over() -> None:
    stored = deleted_in_between()
    assert stored.scan() == [b"0", b"9"]
    assert len(stored.cache.gaps) == 1
    assert stored.steps() < 200
    assert stored.scan() == [b"0", b"9"]


def test_a_scan_backwards_jumps_too() -> None:
    stored = deleted_in_between()
    assert stored.scan(reverse=True) == [b"9", b"0"]
    assert stored.steps(reverse=True) < 200
    assert stored.steps() < 200, "a gap holds in both directions"
    assert stored.scan(reverse=True) == [b"9", b"0"]


def test_a_write_into_a_gap_is_found_and_the_rest_is_jumped_over() -> None:
    stored = deleted_in_between()
    stored.scan()
    stored.put(5, name(100_000 + MANY // 2))
    assert stored.scan() == [b"0", name(100_000 + MANY // 2), b"9"]
    assert stored.scan(reverse=True) == [b"9", name(100_000 + MANY // 2), b"0"]
    assert stored.steps() < 200


def test_a_gap_remains_when_its_keys_are_collected() -> None:
    stored = deleted_in_between()
    stored.scan()
    stored.collect(*(name(number) for number in range(100_000, 100_000 + MANY)))
    assert len(stored.cache.gaps) == 1
    assert stored.scan() == [b"0", b"9"]


def test_a_scan_of_the_past_sees_what_was_there_before() -> None:
    stored = Keys()
    names = [name(number) for number in range(MANY)]
    stored.delete(7, *names)
    stored.scan()
    past: WriteSet = {
        keys.history_key(keys.head_key(each), keys.u64(3)): (
            versions.VALUE_KIND + keys.u64(3) + b"old"
        )
        for each in names
    }
    stored.engine.write(past, sync=False)
    assert stored.scan(at=keys.u64(4)) == names
    assert stored.scan() == []


def test_few_deleted_keys_are_no_gap() -> None:
    stored = Keys()
    stored.delete(1, *(name(number) for number in range(GAP_KEYS_MIN - 1)))
    stored.put(1, b"9")
    stored.scan()
    assert not len(stored.cache.gaps)


def test_the_number_of_gaps_is_bounded() -> None:
    gaps = Gaps()
    for number in range(10 * GAPS_KEPT):
        gaps.add(b"%06d" % number, b"%06d5" % number, keys.u64(number))
    assert len(gaps) == GAPS_KEPT
    assert gaps.beyond(b"%06d" % (10 * GAPS_KEPT - 1), NOW, reverse=False) is not None
    for number in range(10 * GAPS_KEPT):
        gaps.wrote({keys.head_key(b"x%d" % number): b"\x01"})
    assert len(gaps) <= GAPS_KEPT


def test_memory_that_is_emptied_knows_no_gap() -> None:
    stored = deleted_in_between()
    stored.scan()
    stored.cache.clear()
    assert not len(stored.cache.gaps)


NUMBERS = st.integers(0, 1200)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "collect", "scan", "back"]), NUMBERS, NUMBERS),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_scans_return_what_is_there_whatever_was_written_before(
    steps: list[tuple[str, int, int]],
) -> None:
    stored, there = Keys(), set[bytes]()
    deleted: set[bytes] = set()
    stored.delete(1, *(name(number) for number in range(600)))
    deleted |= {name(number) for number in range(600)}
    for stamp, (what, first, second) in enumerate(steps, 2):
        low, high = sorted((first, second))
        names = [name(number) for number in range(low, high)]
        if what == "put":
            stored.put(stamp, *names[:3])
            there |= set(names[:3])
        elif what == "delete":
            stored.delete(stamp, *names)
            there -= set(names)
            deleted |= set(names)
        elif what == "collect":
            gone = [each for each in names if each in deleted and each not in there]
            stored.collect(*gone)
        bounds = (b"", None) if what in {"put", "delete"} else (name(low), name(high))
        wanted = sorted(
            each for each in there if each >= bounds[0] and (bounds[1] is None or each < bounds[1])
        )
        if what == "back":
            assert stored.scan(*bounds, reverse=True, page=300) == wanted[::-1]
        else:
            assert stored.scan(*bounds, page=300) == wanted


def test_a_jump_waits_for_a_proposal_that_writes_into_the_gap() -> None:
    stored = deleted_in_between()
    stored.scan()
    view = View(stored.cache)
    view.in_flight = {keys.head_key(name(100_001)): b"\x01"}
    with pytest.raises(Blocked):
        versions.scan(view, name(100_000), None, NOW, pairs_max=1, bytes_max=1, gaps=view.gaps)
