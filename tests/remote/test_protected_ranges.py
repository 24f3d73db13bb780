"""Protections of stores with several ranges: nothing that they need is collected in any range."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.errors import SnapshotTooOld
from postroom.ranges.protection_news import ProtectionNews, limit_as_heard
from postroom.ranges.protections import Protections
from postroom.ranges.requests import Get, Now, Protect, Unprotect
from tests.client.stores import Store
from tests.remote.streams import Streams
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


NOW = 1_000_000 << 16
SECOND = 1000 << 16


@pytest.mark.parametrize(
    ("news", "serves_root", "limit"),
    [
        (None, True, NOW - 75 * SECOND),
        (None, False, 0),
        (ProtectionNews(0, NOW - 10 * SECOND), False, NOW - 75 * SECOND),
        (ProtectionNews(0, NOW - 40 * SECOND), False, NOW - 85 * SECOND),
        (ProtectionNews(7, NOW - 10 * SECOND), False, 7),
        (ProtectionNews(7, NOW - 10 * SECOND), True, 7),
        (ProtectionNews(7, NOW - 70 * SECOND), True, NOW - 75 * SECOND),
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
