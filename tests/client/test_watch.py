"""Watching: every committed change, once, in order, from any point that is still remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import islice

import pytest

import postroom
from postroom.client.values import Change
from postroom.errors import SnapshotTooOld
from postroom.limits import FRAME_BYTES_MAX, VALUE_BYTES_MAX
from postroom.ranges import feed
from postroom.ranges.requests import CommittedChanges, ScanChanges
from tests.client.hand_driver import Running
from tests.client.stores import Store


def seen(changes: list[Change]) -> list[tuple[bytes, bytes | None]]:
    return [(change.key, change.value) for change in changes]


def following(store: Store, changes: AsyncIterator[Change]) -> Running[Change]:
    """Begin to wait for the next change."""

    async def next_change() -> Change:
        return await anext(changes)

    return store.start(next_change())


def test_a_watch_yields_the_changes_of_a_key_from_its_beginning_on(db: postroom.Database) -> None:
    db.put(b"a", b"0")
    changes = db.watch(b"a")
    db.put(b"a", b"1")
    db.put(b"b", b"other")
    db.delete(b"a")
    db.put(b"a", b"2")
    assert seen(list(islice(changes, 3))) == [(b"a", b"1"), (b"a", None), (b"a", b"2")]
    changes.close()


def test_a_watch_yields_the_changes_of_a_span_in_order(db: postroom.Database) -> None:
    changes = db.watch(*postroom.prefix(b"k/"))
    with db.begin() as tx:
        tx.put(b"k/2", b"1")
        tx.put(b"k/1", b"1")
        tx.put(b"l", b"other")
    db.delete_range(b"", None)
    found = list(islice(changes, 4))
    assert seen(found) == [(b"k/1", b"1"), (b"k/2", b"1"), (b"k/1", None), (b"k/2", None)]
    assert found[0].timestamp == found[1].timestamp == tx.commit_timestamp
    assert found[1].timestamp < found[2].timestamp
    changes.close()


def test_a_watch_sees_updates_and_increments(db: postroom.Database) -> None:
    changes = db.watch(b"n")
    db.increment(b"n", 2)
    with db.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"n", 3))
    found = [postroom.integer(change.value) for change in islice(changes, 2)]
    assert found == [2, 5]
    changes.close()


def test_a_watch_goes_on_after_the_last_change_seen(db: postroom.Database) -> None:
    first = db.watch(b"a", b"c")
    for value in (b"1", b"2", b"3"):
        db.put(b"a", value)
    last = next(first)
    first.close()
    db.put(b"b", b"4")
    again = db.watch(b"a", b"c", after=last.timestamp)
    assert seen(list(islice(again, 3))) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"4")]
    again.close()


def test_a_watch_goes_on_after_a_restart(store: Store) -> None:
    start = store.db.now()
    store.db.put(b"a", b"1")
    store.restart()
    store.db.put(b"a", b"2")
    changes = store.db.watch(b"a", after=start)
    assert seen(list(islice(changes, 2))) == [(b"a", b"1"), (b"a", b"2")]
    changes.close()


def test_a_commit_wakes_who_waits_for_it(store: Store) -> None:
    waits = following(store, store.core.watch(b"a"))
    store.db.put(b"b", b"other")
    assert not waits.done
    store.db.put(b"a", b"1")
    assert seen([waits.result()]) == [(b"a", b"1")]


def test_all_who_watch_a_key_hear_of_its_change(store: Store) -> None:
    watchers = [following(store, store.core.watch(b"a")) for _ in range(10)]
    store.db.put(b"a", b"1")
    assert {watcher.result().value for watcher in watchers} == {b"1"}


def test_a_rollback_is_no_change_for_a_watch(store: Store) -> None:
    waits = following(store, store.core.watch(b"a"))
    tx = store.db.begin()
    tx.put(b"a", b"1")
    tx.rollback()
    assert not waits.done


def test_a_watch_of_many_changes_yields_each_once(store: Store) -> None:
    number = feed.CHANGES_MAX + feed.CHANGES_MAX // 2
    changes = store.core.watch(b"", b"z")
    first = following(store, changes)

    async def write(value: int) -> None:
        await store.core.put(b"k%d" % (value % 7), b"%d" % value)

    for value in range(number):
        store.start(write(value))

    async def follow() -> list[bytes]:
        return [(await anext(changes)).value for _ in range(number - 1)]

    values = [first.result().value, *store.driver.run(follow())]
    assert values == [b"%d" % value for value in range(number)]


@pytest.mark.parametrize("remembered", [True, False])
def test_a_watcher_that_is_far_behind_catches_up(store: Store, remembered: bool) -> None:
    start = store.db.now()
    if remembered:
        following(store, store.core.watch(b"a"))
    number = FRAME_BYTES_MAX // VALUE_BYTES_MAX + 1
    for value in range(number):
        store.db.put(b"k%d" % (value % 7), bytes([value]) * VALUE_BYTES_MAX)
    changes = store.db.watch(b"", b"z", after=start)
    found = [(change.value or b"")[0] for change in islice(changes, number)]
    assert found == list(range(number))
    changes.close()


@pytest.mark.parametrize("remembered", [True, False])
def test_an_answer_is_limited_but_divides_no_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    monkeypatch.setattr(feed, "CHANGES_BYTES_MAX", 100)
    after = int(store.db.now())
    if remembered:
        following(store, store.core.watch(b"b"))
    for _ in range(4):
        with store.db.begin() as tx:
            for number in range(10):
                tx.put(b"a%d" % number, b"v")

    async def ask() -> CommittedChanges:
        changes: CommittedChanges = await store.driver.send(
            ScanChanges(b"a", b"b", after, wait=False)
        )
        return changes

    for _ in range(4):
        page = store.driver.run(ask())
        assert [change.key for change in page.changes] == [b"a%d" % n for n in range(10)]
        (timestamp,) = {change.timestamp for change in page.changes}
        assert after < timestamp <= page.until
        after = page.until
    assert store.driver.run(ask()).changes == []


@pytest.mark.parametrize("others", [10, 200, 2 * feed.CHANGES_MAX])
def test_a_quiet_key_can_be_watched_for_ever(store: Store, others: int) -> None:
    waits = following(store, store.core.watch(b"quiet"))

    async def write(value: int) -> None:
        await store.core.put(b"busy", b"%d" % value)

    for value in range(others):
        store.start(write(value))
    store.advance(200)
    store.db.put(b"busy", b"last")
    store.engine.steps = 0
    store.db.put(b"quiet", b"1")
    assert seen([waits.result()]) == [(b"quiet", b"1")]
    assert store.engine.steps < 10


def test_collected_changes_cannot_be_watched(store: Store) -> None:
    start = store.db.now()
    for value in (b"1", b"2", b"3"):
        store.db.put(b"a", value)
    store.advance(200)
    with pytest.raises(SnapshotTooOld, match="read the span anew and watch from then on"):
        next(store.db.watch(b"a", after=start))


def test_a_watcher_that_leaves_is_forgotten(store: Store) -> None:
    changes = store.db.watch(b"a", after=store.db.now())
    store.db.put(b"a", b"1")
    next(changes)
    changes.close()
    assert not any(store.node.root.replica.waiting_for.values())
