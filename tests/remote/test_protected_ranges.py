"""Protections of stores with several ranges: nothing that they need is collected in any range."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.errors import SnapshotTooOld
from postroom.ranges.protection_news import (
    ProtectionNews,
    ProtectionTeller,
    TellProtections,
    limit_as_heard,
)
from postroom.ranges.protections import Protections
from postroom.ranges.requests import Get, Now, Protect, Unprotect
from tests.client.stores import Store
from tests.remote.streams import DatabaseOverStreams, Streams
from tests.server.hosting import ThreeNodes, cut

KEPT_SECONDS = 100.0
"""A time after which overwritten versions, and COMMIT records, are collected."""
KEYS = (b"a", b"n")


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store of two ranges that collects early."""
    made = Store(remote=request.param, gc_ttl_seconds=2.0, gc_interval_seconds=1.0)
    cut(made.node, b"m")
    made.driver.settle()
    for key in KEYS:
        made.db.put(key, b"old")
    yield made
    made.db.close()


def overwrite_and_collect(store: Store) -> None:
    for key in KEYS:
        store.db.put(key, b"new")
    store.advance(KEPT_SECONDS)
    for key in KEYS:  # the collection of a range goes on with its next commit
        store.db.put(key + b"/other", b"")
    store.advance(KEPT_SECONDS)


def collected(store: Store) -> list[bool]:
    """Return whether each range has collected something."""
    hosted = store.node.replicas.hosted.values()
    return [each.replica.protections.collected > 0 for each in hosted]


def test_a_snapshot_is_read_in_all_ranges_of_a_node(store: Store) -> None:
    with store.db.snapshot() as snapshot:
        overwrite_and_collect(store)
        assert [snapshot.get(key) for key in KEYS] == [b"old", b"old"]
        assert store.node.replicas.sizes()["protections"] == 1
    overwrite_and_collect(store)
    assert store.node.replicas.sizes()["protections"] == 0
    assert collected(store) == [True, True]
    for key in KEYS:
        with pytest.raises(SnapshotTooOld):
            store.db.get(key, at=snapshot.timestamp)


def test_a_position_keeps_the_changes_of_all_ranges(store: Store) -> None:
    at = store.db.now()
    store.db.keep_position("reader", at, seconds=1000)
    overwrite_and_collect(store)
    assert [store.db.get(key, at=at) for key in KEYS] == [b"old", b"old"]
    assert store.db.forget_position("reader")
    overwrite_and_collect(store)
    for key in KEYS:
        with pytest.raises(SnapshotTooOld):
            store.db.get(key, at=at)


def test_a_protection_outlives_the_lease_of_another_range(store: Store) -> None:
    with store.db.snapshot() as snapshot:
        store.node.replicas.by_id(2).stop_serving()
        overwrite_and_collect(store)
        assert [snapshot.get(key) for key in KEYS] == [b"old", b"old"]


def test_a_protection_holds_in_ranges_of_other_nodes() -> None:
    nodes = ThreeNodes()
    nodes.turn_seconds = 0.02
    nodes.lead(1, 1)
    nodes.lead(2, 2)
    client = Streams(nodes)
    client.ask(Now())
    client.put(1, b"z", b"old")
    protected = client.ask(Protect())
    client.put(2, b"z", b"new")
    client.pass_time(KEPT_SECONDS)
    client.put(3, b"y", b"")
    client.pass_time(KEPT_SECONDS)
    assert nodes.hosted(2, 2).replica.protections.collected < protected
    assert client.ask(Get(b"z", protected)).value == b"old"
    client.ask(Unprotect(protected))
    client.put(4, b"y", b"")
    client.pass_time(KEPT_SECONDS)
    with pytest.raises(SnapshotTooOld):
        client.ask(Get(b"z", protected))
    nodes.close()


@pytest.fixture
def nodes() -> Iterator[ThreeNodes]:
    """Return three nodes, of which the first one leads both ranges."""
    made = ThreeNodes()
    made.turn_seconds = 0.02
    made.lead(1, 1)
    made.lead(2, 1)
    yield made
    made.close()


def protected_and_overwritten(nodes: ThreeNodes) -> tuple[Streams, int]:
    """Return a client, and a timestamp that it has protected; all nodes have a record of it."""
    client = Streams(nodes)
    client.ask(Now())
    for number, key in enumerate(KEYS, 1):
        client.put(number, key, b"old")
    protected = client.ask(Protect())
    for number, key in enumerate(KEYS, 3):
        client.put(number, key, b"new")
    client.pass_time(KEPT_SECONDS)
    return client, protected


def test_a_protection_outlives_the_leader_until_its_client_has_come_back(
    nodes: ThreeNodes,
) -> None:
    _, protected = protected_and_overwritten(nodes)
    nodes.crash(1)
    nodes.pass_time(40.0)
    other = Streams(nodes)
    assert [other.ask(Get(key, protected)).value for key in KEYS] == [b"old", b"old"]


def test_a_protection_of_a_vanished_client_ends_under_the_next_leader(nodes: ThreeNodes) -> None:
    _, protected = protected_and_overwritten(nodes)
    nodes.crash(1)
    nodes.pass_time(90.0)
    other = Streams(nodes)
    for key in KEYS:
        with pytest.raises(SnapshotTooOld):
            other.ask(Get(key, protected))


class _Pause(Exception):
    """The end of the rounds that a test wants."""


def told(rounds: list[int], *, is_alone: bool, has_listeners: bool) -> list[int]:
    """Return after which rounds something was told, of rounds with an oldest timestamp each."""
    protections, found = Protections(), list[int]()
    protections.inherited = 5
    number = 0

    async def sleep(_: float) -> None:
        nonlocal number
        if number == len(rounds):
            raise _Pause
        protections.clear()
        protections.inherited = rounds[number]
        number += 1

    async def send(_: TellProtections) -> None:
        found.append(number)

    teller = ProtectionTeller(
        protections, send, sleep, lambda: has_listeners,
        is_alone=is_alone, age_max=lambda: 45 * SECOND,
    )  # fmt: skip
    with pytest.raises(_Pause):
        teller.run().send(None)
    return found


@pytest.mark.parametrize(
    ("is_alone", "has_listeners", "expected"),
    [(True, False, []), (False, False, [2, 3, 5]), (False, True, [1, 2, 3, 4, 5])],
)
def test_a_node_without_listeners_tells_what_has_changed(
    is_alone: bool, has_listeners: bool, expected: list[int]
) -> None:
    rounds = [5, 7, 0, 0, 9]
    assert told(rounds, is_alone=is_alone, has_listeners=has_listeners) == expected


def test_the_protected_present_is_after_all_that_was_acknowledged_in_any_range() -> None:
    nodes = ThreeNodes()
    nodes.lead(1, 1)
    nodes.lead(2, 2)
    client = Streams(nodes)
    ahead = nodes.nodes[2].clock
    ahead.pass_over(ahead.now() + (300 << 16))  # the clock of the other node is behind
    assert client.ask(Now()) >= ahead.reading()
    client.put(1, b"z", b"value")
    other = Streams(nodes)
    protected = other.ask(Protect())
    assert other.ask(Get(b"z", protected)).value == b"value"
    other.ask(Unprotect(protected))
    nodes.close()


SECOND = 1000 << 16
WEEK = 7 * 86_400 * SECOND
NOW = 9 * WEEK


@pytest.mark.parametrize(
    ("news", "serves_root", "limit"),
    [
        (None, True, NOW - 75 * SECOND),
        (None, False, 0),
        (ProtectionNews(0, NOW - 10 * SECOND), False, NOW - 75 * SECOND),
        (ProtectionNews(0, NOW - 40 * SECOND), False, NOW - 85 * SECOND),
        (ProtectionNews(NOW - 99 * SECOND, NOW - 10 * SECOND), False, NOW - 99 * SECOND),
        (ProtectionNews(NOW - 99 * SECOND, NOW - 10 * SECOND), True, NOW - 75 * SECOND),
        (ProtectionNews(7, NOW), False, NOW - 75 * SECOND - WEEK),
        (ProtectionNews(NOW, NOW), False, NOW - 75 * SECOND),
    ],
)
def test_a_range_collects_no_more_than_its_node_has_heard(
    news: ProtectionNews | None, serves_root: bool, limit: int
) -> None:
    assert limit_as_heard(NOW - 75 * SECOND, NOW, news, serves_root=serves_root) == limit


def test_a_timestamp_of_which_others_hear_too_late_is_not_protected() -> None:
    protections = Protections()
    protections.check_age(1, NOW)
    protections.age_max = 45 * SECOND
    protections.check_age(NOW - 45 * SECOND, NOW)
    with pytest.raises(SnapshotTooOld, match="other nodes"):
        protections.check_age(NOW - 46 * SECOND, NOW)


def test_an_old_timestamp_is_protected_once_more_while_others_keep_what_it_needs() -> None:
    """A reader that is slow goes on, and so does one that comes back to its position."""
    protections, old = Protections(), NOW - 1000 * SECOND
    protections.age_max = 45 * SECOND
    with pytest.raises(SnapshotTooOld):
        protections.check_age(old, NOW, lambda: old + 1)
    protections.check_age(old, NOW, lambda: old)
    protections.add(old)
    protections.check_age(old, NOW)
    protections.check_age(old + 1, NOW)
    with pytest.raises(SnapshotTooOld):
        protections.check_age(old - 1, NOW)
    protections.remove(old)
    protections.inherited = old
    protections.check_age(old, NOW)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_timestamp_that_ranges_tell_to_be_readable_can_be_protected(leader: int) -> None:
    """It is the oldest that a client keeps, or a few seconds less than what others hear of."""
    nodes = ThreeNodes()
    nodes.turn_seconds = 0.02
    nodes.lead(1, 1)
    nodes.lead(2, leader)
    client = DatabaseOverStreams(nodes)
    client.pass_time(200.0)
    assert client.run(client.db.now()) - readable(client) < 45 * SECOND
    old = readable(client)
    hold = client.db.hold(old)
    client.run(hold.__aenter__())
    client.pass_time(200.0)
    assert readable(client) == old
    client.run(client.db.hold(old).__aenter__())
    nodes.close()


def readable(client: DatabaseOverStreams) -> int:
    """Return the timestamp from which all ranges can be read."""
    parts = client.run(client.db.partitions())
    assert len(parts) == 2
    return max(int(each.readable_from) for each in parts)


def test_a_slow_reader_and_one_that_comes_back_read_in_ranges_of_other_nodes() -> None:
    nodes = ThreeNodes()
    nodes.lead(2, 2)
    client = DatabaseOverStreams(nodes)
    old = client.run(client.db.now())
    first = client.db.hold(old)
    client.run(first.__aenter__())
    client.pass_time(200.0)
    second = client.db.hold(old)
    client.run(second.__aenter__())  # a task of a data frame does so
    client.run(client.db.keep_position("name", old))
    for each in (first, second):
        client.run(each.__aexit__(None, None, None))
    client.pass_time(200.0)
    client.run(client.db.hold(old).__aenter__())
    with pytest.raises(SnapshotTooOld, match="other nodes"):
        client.run(client.db.hold(old - 1).__aenter__())
