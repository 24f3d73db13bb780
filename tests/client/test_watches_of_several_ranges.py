"""Watches of a store with several ranges: each change once, in one order, from any point on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postroom
from postroom.client.routing.changes import asked_until
from postroom.client.routing.merges import AnsweredPart, following, merged, merged_so_far
from postroom.client.values import Change
from postroom.errors import SnapshotTooOld
from postroom.ranges import feed
from postroom.ranges.requests import (
    CommittedChange,
    CommittedChanges,
    CommitTransaction,
    Put,
    ScanChanges,
)
from tests.client.hand_driver import Running
from tests.client.stores import Store
from tests.client.worker.running import eventually
from tests.messaging.one_range import Asked
from tests.remote.streams import DatabaseOverStreams
from tests.remote.test_splits import SplitNodes
from tests.server.hosting import ThreeNodes, cut

CUTS = (b"m", b"x")
KEYS = (b"a", b"n", b"y")


@pytest.fixture(params=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Yield a store with three ranges, driven by hand: here, or beyond a wire."""
    made = Store(remote=request.param == "remote")
    made.db.put(b"k", b"")  # the client is there before the ranges
    cut(made.node, *CUTS)
    made.driver.settle()
    yield made
    made.db.close()


def following_change(
    store: Store, changes: postroom.client.pages.Stream[Change]
) -> Running[Change]:
    """Begin to wait for the next change."""

    async def next_change() -> Change:
        return await anext(changes)

    return store.start(next_change())


def told(changes: Iterable[Change]) -> list[tuple[int, bytes, bytes | None]]:
    return [(change.timestamp, change.key, change.value) for change in changes]


def test_a_change_in_any_range_wakes_a_watch(store: Store) -> None:
    changes = store.core.watch(b"", b"z")
    for number, key in enumerate(KEYS * 2):
        waits = following_change(store, changes)
        store.advance(100)
        assert not waits.done
        store.db.put(key, b"%d" % number)
        assert (waits.result().key, waits.result().value) == (key, b"%d" % number)
    assert waiting(store.node) <= len(CUTS) + 1


def waiting(node: Any) -> int:
    """Return how many watches stand in line."""
    ranges = node.replicas.hosted.values()
    return sum(len(each.replica.reads.waiting.watched.all()) for each in ranges)


def test_a_watch_ends_after_its_timeout_in_which_no_range_has_changed(store: Store) -> None:
    changes = store.core.watch(b"", b"z", timeout=5.0)
    waits = following_change(store, changes)
    store.advance(4.0)
    store.db.put(b"n", b"1")
    assert waits.result().key == b"n"
    waits = following_change(store, changes)
    store.advance(4.0)
    assert not waits.done
    store.advance(1.5)
    with pytest.raises(StopAsyncIteration):
        waits.result()
    assert not waiting(store.node)


def test_quiet_ranges_can_be_watched_for_ever_beside_a_busy_one(store: Store) -> None:
    waits = following_change(store, store.core.watch(b"b", b"y"))
    for number in range(100):
        store.db.put(b"z", b"%d" % number)
        store.advance(10)
    assert not waits.done
    store.db.put(b"n", b"1")
    assert waits.result().key == b"n"


def test_collected_changes_of_one_range_cannot_be_watched(store: Store) -> None:
    start = store.db.now()
    for value in (b"1", b"2", b"3"):
        store.db.put(b"n", value)
    store.advance(200)
    with pytest.raises(SnapshotTooOld, match="read the span anew and watch from then on"):
        next(store.db.watch(b"a", b"z", after=start))

    async def wait() -> None:
        await store.driver.send(ScanChanges(b"a", b"z", int(start)))

    with pytest.raises(SnapshotTooOld):
        store.driver.run(wait())
    assert not waiting(store.node), "it waits in no other range"
    store.db.put(b"a", b"told")
    assert next(store.db.watch(b"a", b"m", after=start)).value == b"told"


def test_a_watch_that_is_far_behind_gets_all_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = store.db.now()
    expected = []
    for number in range(60):
        with store.db.begin() as tx:
            for key in KEYS[: number % 3 + 1]:
                tx.put(key, b"%d" % number)
        expected += [(tx.commit_timestamp, key, b"%d" % number) for key in KEYS[: number % 3 + 1]]
    store.advance(5)
    monkeypatch.setattr(feed, "CHANGES_BYTES_MAX", 100)
    with store.db.watch(b"", b"z", after=start) as changes:
        assert told(itertools.islice(changes, len(expected))) == expected
    for at, group in itertools.groupby(expected, key=lambda change: change[0]):
        rest = expected[expected.index(list(group)[-1]) + 1 :][:5]
        with store.db.watch(b"", b"z", after=at) as changes:
            assert told(itertools.islice(changes, len(rest))) == rest


# --- while ranges split


@pytest.fixture(params=["embedded", "remote"])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[postroom.Database, postroom.Database]]:
    """Return a store with two ranges, and the same store or a client of it."""
    address = f"unix:{tmp_path / 'socket'}"
    with postroom.open(":memory:", serve=address) as store:
        store.split(b"m")
        if request.param == "embedded":
            yield store, store
        else:
            with postroom.connect(address) as client:
                yield store, client


def test_each_change_is_told_once_in_order_while_ranges_split(
    stores: tuple[postroom.Database, postroom.Database],
) -> None:
    store, watching = stores
    names = [b"k%02d" % number for number in range(0, 100, 5)]
    since = store.now()

    def write(first: int) -> None:
        for number in range(100):
            with store.begin() as tx:
                for name in names[first::4]:
                    tx.put(name, b"%d" % number)

    with ThreadPoolExecutor(4) as pool, watching.watch(b"", b"z", after=since) as changes:
        writing = [pool.submit(write, first) for first in range(4)]
        wanted = 100 * len(names)
        found = list(itertools.islice(changes, wanted // 4))
        for cut_at in Random(1).sample(names, 5):
            store.split(cut_at + b"!")
            found += itertools.islice(changes, wanted // 8)
        found += itertools.islice(changes, wanted - len(found))
        for each in writing:
            each.result()
    order = [(change.timestamp, change.key) for change in found]
    assert order == sorted(set(order))
    for name in names:
        assert [each.value for each in found if each.key == name] == [
            b"%d" % number for number in range(100)
        ]
    with watching.watch(b"", b"z", after=since) as changes:
        assert told(itertools.islice(changes, wanted)) == told(found)


def test_a_quiet_watch_waits_once_in_each_range_whatever_splits_and_in_none_when_it_is_closed(
    stores: tuple[postroom.Database, postroom.Database],
) -> None:
    store, watching = stores
    look: Any = store.sender
    with ThreadPoolExecutor(1) as pool, watching.watch(b"", b"z") as changes:
        first = pool.submit(next, changes)
        for number in range(60):
            store.split(b"k%03d" % number)
        eventually(lambda: look.look(waiting) == len(store.ranges()) == 62)
        assert not first.done()
        store.put(b"k030", b"1")
        assert first.result(30).key == b"k030"
        second = pool.submit(next, changes)
        eventually(lambda: look.look(waiting) == 62)
        changes.close()
        with pytest.raises(StopIteration):
            second.result(30)
    eventually(lambda: not look.look(waiting))


# --- several nodes


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_watch_goes_on_while_leaders_change_whatever_clock_is_ahead(ahead: int) -> None:
    nodes = ThreeNodes(*CUTS)
    for range_id in nodes.range_ids:
        nodes.lead(range_id, range_id)
    clock = nodes.nodes[ahead].clock
    clock.pass_over(clock.reading() + (300 << 16))
    writer, reader = DatabaseOverStreams(nodes), DatabaseOverStreams(nodes)
    changes = reader.db.watch(b"", b"z", after=reader.run(reader.db.now()))
    found = list[Change]()

    async def read(count: int) -> None:
        for _ in range(count):
            found.append(await anext(changes))

    for number in range(12):
        reading = reader.start(read(len(KEYS)))
        for key in KEYS:
            writer.run(writer.db.put(key, b"%d" % number))
        reader.finish(reading)
        nodes.lead(nodes.range_ids[number % 3], number % 2 + 1)
    assert [change.timestamp for change in found] == sorted(change.timestamp for change in found)
    for key in KEYS:
        assert [each.value for each in found if each.key == key] == [b"%d" % n for n in range(12)]
    nodes.close()


def test_a_waiting_watch_of_one_range_goes_on_in_its_halves() -> None:
    nodes = SplitNodes()
    client, other = DatabaseOverStreams(nodes), DatabaseOverStreams(nodes)
    changes = client.db.watch(b"", b"z")
    found = list[tuple[bytes, bytes | None]]()

    async def read() -> None:
        async for change in changes:
            found.append((change.key, change.value))

    reading = client.start(read())
    expected = list[tuple[bytes, bytes | None]]()
    for number, key in enumerate((b"m", b"c", b"t", b"p")):
        client.pass_time(0.1)
        other.run(other.db.split(key))
        for each in (b"b", key, b"y"):
            other.run(other.db.put(each, b"%d" % number))
            expected.append((each, b"%d" % number))
        client.until(lambda: client.go_on(reading) or len(found) == len(expected))
    assert found == expected
    nodes.close()


def test_changes_up_to_a_timestamp_wait_for_the_commits_under_way() -> None:
    nodes = ThreeNodes(b"m")
    node = nodes.nodes[nodes.awaited_leader(2)]
    nodes.ask(node.node_id, ScanChanges(b"m", None, 1, wait=False))  # changes are kept from now on
    began = node.clock.now()
    put = Asked(CommitTransaction(bytes(16), began, 60.0, 0, b"n", [], [], [Put(b"n", b"1")]))
    node.replicas.submit(put)
    node.turn()
    until = node.clock.now()
    changes = Asked(ScanChanges(b"m", None, began, False, until))
    node.replicas.submit(changes)
    assert not put.answers
    assert not changes.answers
    nodes.until(lambda: changes.answers)
    result, error = changes.answers[0]
    assert error is None
    assert [change.key for change in result.changes] == [b"n"]
    assert result.until == until
    nodes.close()


def test_a_range_whose_clock_is_behind_commits_nothing_below_an_answer() -> None:
    nodes = ThreeNodes(b"m")
    node_id = nodes.awaited_leader(2)
    until = nodes.nodes[node_id].clock.now() + (300 << 16)
    changes = nodes.ask(node_id, ScanChanges(b"m", None, 1, False, until))
    assert changes.until == until
    commit = CommitTransaction(bytes(16), until, 60.0, 0, b"n", [], [], [Put(b"n", b"1")])
    assert nodes.ask(node_id, commit).timestamp > until
    nodes.close()


# --- the order


def part(stored: list[tuple[int, int]], request: ScanChanges, clock: int) -> CommittedChanges:
    """Return the answer of a range with changes: timestamps and values."""
    until = min(request.until, clock)
    found = [
        CommittedChange(at, b"%d" % number, b"", False)
        for at, number in stored
        if request.after < at <= until
    ]
    return feed.in_order(found, until)


changes_of_ranges = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), unique=True), min_size=2, max_size=5
)


@given(changes_of_ranges, st.integers(25, 200))
def test_merged_answers_have_each_change_once_in_order(
    ranges: list[list[tuple[int, int]]], bytes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "CHANGES_BYTES_MAX", bytes_max)
        found, after, rounds = list[int](), 0, 0
        while after < 50:
            rounds += 1
            request = ScanChanges(b"", None, after, False, 60)
            answered = list[AnsweredPart]()
            for number, stored in enumerate(ranges):
                asked = following(request, answered)
                assert asked == asked_until(request, asked.until)
                clock = 7 * rounds + 3 * len(ranges) - number
                answer = part(stored, asked, clock)
                answered = merged_so_far([*answered, AnsweredPart(asked, answer)])
                assert len(answered) == 1
            told_now = merged(request, answered)
            assert told_now.until >= after
            found += [change.timestamp for change in told_now.changes]
            after = told_now.until
    assert found == sorted(at for stored in ranges for at, _ in stored)
