"""Answers of several ranges are one answer: pages that leave nothing out and repeat nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.client.routing.merges import MERGES, summed
from postroom.messaging import due
from postroom.messaging.requests import (
    Counters,
    DeadLetterRecord,
    ListDeadLetters,
    ListScheduled,
    ScheduledEntry,
    SchedulePage,
    StoredDeadLetter,
)

RANGES = (1, 2, 3)
names = st.tuples(st.sampled_from(RANGES), st.integers(1, 9), st.booleans(), st.integers(1, 30))
page_sizes = st.integers(1, 4)


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def letters(range_id: int, stored: list[bytes], after: bytes, most: int) -> list[StoredDeadLetter]:
    """Return a page of the dead letters of a range, as the range answers it."""
    order = [name[8:] + name[:8] for name in stored if name[:8] == u64(range_id)]
    left = sorted(each for each in order if each > after[8:] + after[:8])
    return [
        StoredDeadLetter(each[-8:] + each[:-8], DeadLetterRecord("", None, None), more)
        for number, each in enumerate(left[:most], 1)
        for more in (number == most and len(left) > most,)
    ]


@given(st.sets(names), page_sizes)
def test_pages_of_dead_letters_have_each_of_them_once_and_in_order(
    drawn: set[tuple[int, int, bool, int]], most: int
) -> None:
    stored = list({u64(range_id) + u64(when) + bytes([id_]) for range_id, when, _, id_ in drawn})
    found: list[bytes] = []
    while True:
        after = found[-1] if found else b""
        pages = [letters(range_id, stored, after, most) for range_id in RANGES]
        page = MERGES[ListDeadLetters](pages)
        found += [each.id for each in page]
        if not page or not page[-1].more:
            break
    assert found == sorted(stored, key=lambda name: (name[8:], name[:8]))


def schedule(range_id: int, stored: list[bytes], after: bytes, most: int) -> SchedulePage:
    """Return a page of the scheduled entries of a range, as the range answers it."""
    left = [name for name in sorted(stored, key=cursor) if name[:8] == u64(range_id)]
    left = [name for name in left if not after or cursor(name) > cursor(after)]
    entries = [ScheduledEntry(name, None, None) for name in left[:most]]
    return SchedulePage(entries, left[most - 1] if len(left) > most else None)


def cursor(name: bytes) -> tuple[int, bytes, bytes]:
    return due.shown(int.from_bytes(name[8:16], "big")), name[16:], name[:8]


@given(st.sets(names), page_sizes)
def test_pages_of_scheduled_entries_have_each_of_them_once_and_in_order(
    drawn: set[tuple[int, int, bool, int]], most: int
) -> None:
    stored = [
        u64(range_id)
        + u64(due.at(when << 20) if is_moment else when << 20)
        + bytes([id_, is_moment])
        for range_id, when, is_moment, id_ in drawn
    ]
    found: list[bytes] = []
    after = b""
    while True:
        pages = [schedule(range_id, stored, after, most) for range_id in RANGES]
        page = MERGES[ListScheduled](pages)
        found += [each.id for each in page.entries]
        if page.resume is None:
            break
        after = page.resume
    assert found == sorted(stored, key=cursor)


def test_counters_are_added_up() -> None:
    one = Counters(enqueued=3, delivered=1, handed=2)
    other = Counters(received=2, delivered=1, executed=1)
    assert summed([one, other]) == Counters(
        enqueued=3, delivered=2, executed=1, received=2, handed=2
    )
    assert summed([one, other]).conserved()
