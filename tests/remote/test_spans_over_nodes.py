"""The calls through spans of ranges that different nodes lead, with clocks of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.client import pages
from postroom.client.transaction import Transaction
from postroom.errors import TransactionConflict
from postroom.kv.clock import from_seconds
from postroom.ranges.descriptor import RangeDescriptor
from tests.remote.streams import DatabaseOverStreams
from tests.remote.test_splits import SplitNodes
from tests.server.hosting import ThreeNodes

KEYS = [b"%s/%d" % (letter, number) for letter in (b"a", b"n", b"y") for number in range(5)]


@pytest.fixture
def three() -> Iterator[ThreeNodes]:
    """Return three nodes; each leads one of the ranges that begin at ``b""``, ``m`` and ``x``."""
    nodes = ThreeNodes(b"m", b"x")
    for range_id in nodes.range_ids:
        nodes.lead(range_id, range_id)
    yield nodes
    nodes.close()


def set_ahead(three: ThreeNodes, node_id: int, seconds: float) -> None:
    """Set the clock of a node ahead."""
    clock = three.nodes[node_id].clock
    clock.pass_over(clock.reading() + from_seconds(seconds))


async def fill(store: DatabaseOverStreams) -> None:
    for key in KEYS:
        await store.db.put(key, key)


async def scanned(reader: Any, *span: Any, **how: Any) -> list[bytes]:
    return [key async for key, _ in reader.scan(*span, **how)]


@pytest.fixture
def store(three: ThreeNodes) -> DatabaseOverStreams:
    made = DatabaseOverStreams(three)
    made.run(fill(made))
    return made


def test_all_ranges_are_scanned_in_order_in_pages(
    store: DatabaseOverStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAIRS_PER_PAGE", 2)
    assert store.run(scanned(store.db)) == KEYS
    assert store.run(scanned(store.db, reverse=True)) == KEYS[::-1]
    assert store.run(scanned(store.db, b"a/3", b"y/2", limit=8)) == KEYS[3:11]
    assert store.run(scanned(store.db, b"a/3", b"y/2", limit=8, reverse=True)) == KEYS[4:12][::-1]
    wanted = [b"y/1", b"none", b"a/0", b"n/4"]
    assert store.run(store.db.get_many(wanted)) == [b"y/1", None, b"a/0", b"n/4"]


@pytest.mark.parametrize("span", [(b"a", b"a"), (b"n", b"n"), (b"z", b"y"), (b"z", b"")])
def test_an_empty_span_is_found_empty_whichever_node_leads_its_range(
    store: DatabaseOverStreams, span: tuple[bytes, bytes]
) -> None:
    async def delete() -> list[bytes]:
        async with store.db.begin() as tx:
            await tx.delete_range(*span)
            return await scanned(tx, *span)

    assert store.run(scanned(store.db, *span)) == []
    assert store.run(delete()) == []
    assert store.run(scanned(store.db)) == KEYS


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_value_that_was_acknowledged_before_is_seen_whatever_clock_is_ahead(
    three: ThreeNodes, store: DatabaseOverStreams, ahead: int
) -> None:
    """The other client has heard of no clock that is ahead."""
    other = DatabaseOverStreams(three)
    set_ahead(three, ahead, 0.3)
    store.run(fill(store))
    for key in (b"a/9", b"n/9", b"y/9"):
        store.run(store.db.put(key, b"new"))

    async def read(tx: Transaction) -> list[Any]:
        found = [await tx.get(b"a/0"), await scanned(tx, b"n/8", None)]
        return [*found, await tx.get_many([b"a/9", b"n/9", b"y/9"])]

    assert other.run(scanned(other.db)) == sorted([*KEYS, b"a/9", b"n/9", b"y/9"])
    assert other.run(other.db.get_many([b"a/9", b"n/9", b"y/9"])) == [b"new"] * 3
    assert other.run(other.db.run(read)) == [
        b"a/0",
        [b"n/9", b"y/0", b"y/1", b"y/2", b"y/3", b"y/4", b"y/9"],
        [b"new"] * 3,
    ]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_deletion_spares_what_is_written_later_and_nothing_else(
    three: ThreeNodes, store: DatabaseOverStreams, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_ahead(three, ahead, 0.3)
    store.run(fill(store))
    assert store.run(store.db.delete_range(b"a/1", b"y/3")) == 12
    assert store.run(scanned(store.db)) == [b"a/0", b"y/3", b"y/4"]


def test_a_range_that_splits_between_two_pages_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "PAIRS_PER_PAGE", 2)
    three = SplitNodes()
    store = DatabaseOverStreams(three)
    store.run(fill(store))
    other = DatabaseOverStreams(three)

    async def scan(reader: Any, *, reverse: bool) -> list[bytes]:
        found = list[bytes]()
        async for key, _ in reader.scan(reverse=reverse):
            found.append(key)
            if len(found) == 4:
                split = other.start(other.db.split(b"a/2" if reverse else b"m"))
                while not split.done:
                    await store.sleep(0.001)
                    other.go_on(split)
        return found

    assert store.run(scan(store.db, reverse=False)) == KEYS
    with_tx = store.db.begin()
    assert store.run(scan(with_tx, reverse=True)) == KEYS[::-1]
    with_tx.put(b"count", b"15")
    store.run(with_tx.commit())
    assert len(store.run(store.db.ranges())) == 3
    three.close()


def test_a_client_with_a_lying_cache_scans_all_ranges(store: DatabaseOverStreams) -> None:
    lies = [RangeDescriptor(7, b"a/2", b"n/3", 99), RangeDescriptor(8, b"n/3", b"y/2", 99)]
    store.router._lanes.learn(lies, 2)
    assert store.run(scanned(store.db)) == KEYS
    store.router._lanes.learn(lies, 3)
    assert store.run(store.db.get_many(KEYS)) == KEYS
    store.router._lanes.learn([RangeDescriptor(1, b"", None, 77)], 1)
    assert store.run(store.db.delete_range(b"", None)) == len(KEYS)


def test_a_transaction_that_keeps_losing_begins_above_all_clocks(
    store: DatabaseOverStreams,
) -> None:
    """Both keys change all the time: a read of one, then of the other, would conflict for ever."""
    tries = list[int]()

    async def read(tx: Transaction) -> list[Any]:
        tries.append(len(tries))
        found = [await tx.get(b"a/0")]
        await store.db.put(b"a/0", b"new")
        await store.db.put(b"y/0", b"new")
        return [*found, await tx.get(b"y/0"), tx.read_timestamp]

    assert len(store.run(store.db.run(read))) == 3
    assert len(tries) == 2


def test_a_phantom_in_another_range_is_a_conflict(store: DatabaseOverStreams) -> None:
    tx = store.db.begin()
    assert store.run(scanned(tx, b"n", b"z")) == KEYS[5:]
    tx.put(b"a/0", b"10")
    store.run(store.db.put(b"y/00", b"phantom"))
    with pytest.raises(TransactionConflict):
        store.run(tx.commit())
