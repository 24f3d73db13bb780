"""Answers of several ranges are one answer: pages that leave nothing out and repeat nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import postroom
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
from tests.client.stores import Store
from tests.server.hosting import cut

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


def test_inboxes_of_several_ranges_are_listed_as_those_of_one_are() -> None:
    mail = [b"y", b"b", b"n", b"a", b"z", b"m", b"c", b"b"]
    with postroom.open(":memory:") as one, postroom.open(":memory:") as several:
        for key in (b"m", b"z"):
            several.split(key)
        for key in mail:
            for db in (one, several):
                with db.begin() as tx:
                    tx.enqueue_message(key, b"")
                db.drain()  # one range delivers at once, another one a little later
        for by_key in (False, True):
            for limit in (1, 3, 100):
                expected = [each.key for each in one.inboxes(limit=limit, by_key=by_key)]
                found = [each.key for each in several.inboxes(limit=limit, by_key=by_key)]
                assert found == expected
        assert [each.key for each in several.inboxes(b"b", b"n", by_key=True)] == [b"b", b"c", b"m"]
        assert [each.messages for each in several.inboxes(b"b", b"c")] == [2]


def test_a_remote_client_lists_the_inboxes_of_several_ranges() -> None:
    store = Store(remote=True)
    store.db.put(b"k", b"")
    cut(store.node, b"m", b"z")
    store.driver.settle()
    for key in (b"z", b"a", b"m"):
        with store.db.begin() as tx:
            tx.enqueue_message(key, b"")
    assert [each.key for each in store.db.inboxes()] == [b"z", b"a", b"m"]
    assert [each.key for each in store.db.inboxes(by_key=True, limit=2)] == [b"a", b"m"]
    store.db.close()
