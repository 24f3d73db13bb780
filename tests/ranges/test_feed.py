"""The feed keeps as many of the last changes as it may, while a client watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from postroom import limits
from postroom.client.values import Change
from postroom.limits import FEED_BYTES_MAX
from postroom.ranges import feed
from postroom.ranges.requests import CommittedChanges, ScanChanges
from tests.client.hand_driver import Running
from tests.client.stores import Store


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.db.close()


class Watcher:
    """A client that watches a span, change by change."""

    def __init__(self, store: Store, start: bytes, end: bytes) -> None:
        self.store = store
        self._changes: AsyncGenerator[Change, None] = store.core.watch(start, end)
        self._next: Running[Change] = store.start(anext(self._changes))  # type: ignore[arg-type]

    def next(self) -> bytes:
        self.store.driver.settle()
        change = self._next.result()
        self._next = self.store.start(anext(self._changes))  # type: ignore[arg-type]
        return bytes(change.value)

    def leave(self) -> None:
        for line in list(self.store.node.root.replica.waiting_for.values()):
            for waiting in list(line):
                self.store.node.replicas.cancel(waiting)


def test_large_changes_are_bounded_in_bytes(store: Store) -> None:
    watcher = Watcher(store, b"a", b"b")
    for number in range(40):
        store.db.put(b"a", b"%02d" % number + bytes(1_000_000))
        assert watcher.next()[:2] == b"%02d" % number
        assert store.node.root.replica.feed.kept_bytes <= FEED_BYTES_MAX
    assert store.node.root.replica.feed.kept_bytes > FEED_BYTES_MAX // 4


def test_a_watcher_behind_the_kept_changes_misses_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "FEED_BYTES_MAX", 400)
    watcher = Watcher(store, b"a", b"b")
    since = store.driver.now()
    for number in range(50):
        store.db.put(b"a%02d" % (number % 7), b"%02d" % number + bytes(number % 60))
    assert [watcher.next()[:2] for _ in range(50)] == [b"%02d" % number for number in range(50)]
    assert 0 < store.node.root.replica.feed.kept_bytes <= 400
    changes = store.db.watch(b"a", b"b", after=since)
    assert [next(changes).value[:2] for _ in range(50)] == [b"%02d" % each for each in range(50)]


def test_a_commit_larger_than_all_that_is_kept_is_told_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "FEED_BYTES_MAX", 100)
    watcher = Watcher(store, b"a", b"b")
    with store.db.begin() as tx:
        for number in range(5):
            tx.put(b"a%d" % number, bytes(90) + b"%d" % number)
    assert [watcher.next()[-1:] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert store.node.root.replica.feed.kept_bytes <= 100


def test_changes_without_watchers_are_forgotten(store: Store) -> None:
    watcher = Watcher(store, b"a", b"b")
    store.db.put(b"a", bytes(1000))
    watcher.next()
    store.advance(5 * feed.IDLE_SECONDS)
    assert store.node.root.replica.feed.kept_bytes > 1000, "it waits still"
    watcher.leave()
    store.advance(2 * feed.IDLE_SECONDS)
    assert store.node.root.replica.feed.kept_bytes == 0
    store.db.put(b"a", bytes(1000))
    assert store.node.root.replica.feed.kept_bytes == 0
    timers = len(store.node.tasks._timers)
    store.advance(100 * feed.IDLE_SECONDS)
    assert len(store.node.tasks._timers) <= timers


def test_a_watcher_that_reads_slowly_finds_it_again(store: Store) -> None:
    since = store.driver.now()
    for number in range(3):
        store.db.put(b"a", b"%d" % number)
        changes = store.start(_ask(store, ScanChanges(b"a", b"b", since)))
        assert changes.result() == b"%d" % number
        since = store.driver.now()
        store.advance(5 * feed.IDLE_SECONDS)
        assert store.node.root.replica.feed.kept_bytes == 0


async def _ask(store: Store, request: ScanChanges) -> bytes | None:
    reply = await store.driver.send(request)
    value: bytes | None = reply.changes[-1].value
    return value


def test_a_replica_that_stops_serving_drops_its_changes(store: Store) -> None:
    watcher = Watcher(store, b"a", b"b")
    store.db.put(b"a", bytes(1000))
    watcher.next()
    store.node.root.replica.stop_serving()
    assert store.node.root.replica.feed.kept_bytes == 0


@pytest.mark.parametrize("turns", range(16))
def test_a_watch_that_begins_during_a_completion_misses_no_change(
    store: Store, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", 1)
    store.db.put(b"before", b"")

    async def write() -> None:
        async with store.core.begin() as tx:
            for number in range(4):
                tx.put(b"a%d" % number, b"%d" % number)

    writing = Running(write())
    for _ in range(turns):
        store.node.turn()
    request = ScanChanges(b"a", b"b", store.node.root.replica.last_commit, wait=True)
    answer = Running(_answer(store.driver.send(request)))
    for _ in range(30):
        store.node.turn()
        writing.go_on()
        answer.go_on()
    assert writing.done
    if answer.done:
        found = [change.value for change in answer.result().changes]
        assert found == [b"0", b"1", b"2", b"3"]
    else:
        assert store.node.root.replica.last_commit == request.after, "it was there before"


async def _answer(answer: Awaitable[CommittedChanges]) -> CommittedChanges:
    return await answer


def test_a_change_of_more_than_is_kept_is_read_from_the_versions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "CHANGES_MAX", 20)
    watcher = Watcher(store, b"a", b"b")
    store.db.put(b"a0", b"first")
    with store.db.begin() as tx:
        for number in range(500):
            tx.put(b"a%03d" % number, b"%03d" % number)
    assert store.node.root.replica.feed.kept_bytes == 0, "so many are not even looked through"
    store.db.put(b"a9", b"last")
    found = [watcher.next() for _ in range(502)]
    assert found == [b"first", *(b"%03d" % number for number in range(500)), b"last"]


class Looks:
    """A count of how often the feed looks at somebody that watches."""

    def __init__(self, store: Store) -> None:
        self.number = 0
        reads = store.node.root.replica.registry.reads
        read = reads[ScanChanges]

        def counted(*rest: Any) -> Any:
            self.number += 1
            return read(*rest)

        reads[ScanChanges] = counted

    def during(self, store: Store, key: bytes, value: bytes = b"") -> int:
        """Return how many looks a commit takes."""
        before = self.number
        store.db.put(key, value)
        store.driver.settle()
        return self.number - before


def _watch(store: Store, *spans: tuple[bytes, bytes]) -> list[Running[CommittedChanges]]:
    store.db.put(b"first", b"")
    at = store.node.root.replica.last_commit
    return [
        store.start(_answer(store.driver.send(ScanChanges(start, end, at)))) for start, end in spans
    ]


def test_a_commit_looks_only_at_watches_of_what_it_writes(store: Store) -> None:
    keys = [b"other/%04d" % number for number in range(1000)]
    watching = _watch(
        store,
        *[(key, key + b"\x00") for key in keys],
        *[(key, key + b"\xff") for key in keys],
        *[(b"a" + key, b"z" + key) for key in keys[:10]],
    )
    looks = Looks(store)
    assert [looks.during(store, b"put/%d" % number) for number in range(300)][10:] == [0] * 290, (
        "the first ones answer those that begin below"
    )
    assert looks.during(store, keys[7]) == 2
    assert looks.during(store, keys[8] + b"/below") == 1
    assert sum(each.done for each in watching) == 10 + 3


def test_a_watch_is_told_of_one_key_among_many_that_a_commit_writes(store: Store) -> None:
    names = [b"k%03d" % number for number in range(500)]
    watching = _watch(store, *[(name, name + b"\x00") for name in names])
    looks = Looks(store)
    with store.db.begin() as tx:
        for name in names:
            tx.put(name, name)
    store.driver.settle()
    assert [[change.key for change in each.result().changes] for each in watching] == [
        [name] for name in names
    ]
    assert looks.number == 500


def test_a_watch_is_told_of_changes_in_the_order_of_commits_and_keys(store: Store) -> None:
    (waits,) = _watch(store, (b"a", b"b"))

    async def write(*keys: bytes) -> None:
        async with store.core.begin() as tx:
            for key in keys:
                tx.put(key, b"")

    store.start(write(b"x"))  # the others go together, into the next proposal
    for keys in ((b"a3", b"a1"), (b"a2", b"a4", b"a0"), (b"a1",)):
        store.start(write(*keys))
    found = [(change.timestamp, change.key) for change in waits.result().changes]
    assert found == sorted(found)
    assert len(found) > 1


def test_a_watch_from_a_later_timestamp_waits_for_it(store: Store) -> None:
    later = store.driver.now() + (10_000 << 16)
    waits = store.start(_answer(store.driver.send(ScanChanges(b"a", b"b", later))))
    store.db.put(b"a", b"too early")
    store.db.put(b"a", b"too early again")
    assert not waits.done
    store.advance(20)
    store.db.put(b"a", b"told")
    assert [change.value for change in waits.result().changes] == [b"told"]


def test_a_quiet_watch_is_told_once_in_a_while_how_far_it_has_come(store: Store) -> None:
    (waits,) = _watch(store, (b"quiet", b"quiet\x00"))
    store.advance(2 * feed.REFRESH_SECONDS)
    assert not waits.done, "nothing was committed: it knows everything"
    store.db.put(b"busy", b"")
    store.advance(feed.IDLE_SECONDS)
    changes = waits.result()
    assert (changes.changes, changes.until) == ([], store.node.root.replica.last_commit)


def test_many_quiet_watches_are_refreshed_over_many_turns(store: Store) -> None:
    watching = _watch(store, *[(b"q%03d" % number, b"q%03d~" % number) for number in range(300)])
    store.advance(2 * feed.REFRESH_SECONDS)
    store.db.put(b"busy", b"")
    done = []
    for _ in range(100):
        store.advance(feed.IDLE_SECONDS / 50)
        done.append(sum(each.done for each in watching))
    assert done[-1] == 300
    assert max(after - before for before, after in pairwise(done)) < 300
