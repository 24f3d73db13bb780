"""Inboxes with the oldest messages first: what is read follows from the limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.messaging import inbox_index
from tests.client.stores import Store
from tests.client.watched_engine import WatchedEngine


def fill(store: Store, inboxes: int) -> None:
    """Send a message to each key; those with the highest keys come first."""
    for first in range(inboxes, 0, -2000):
        with store.db.begin() as tx:
            for number in range(first, max(first - 2000, 0), -1):
                tx.enqueue_message(b"%06d" % (number - 1), b"m")


def reads(store: Store, action: Callable[[], object]) -> int:
    """Count the entries that an action reads, without those that are cached."""
    engine: WatchedEngine = store.engine
    before = engine.steps + engine.gets
    action()
    return engine.steps + engine.gets - before


def reference(
    db: postroom.Database, start: bytes, end: bytes | None, limit: int, **how: Any
) -> Any:
    """List by reading all inboxes of the span."""
    found, position = [], start
    while page := db.inboxes(position, end, limit=2000, by_key=True, **how):
        found += page
        position = page[-1].key + b"\x00"
    return sorted(found, key=lambda each: each.oldest)[:limit]


@pytest.mark.parametrize("ready", [False, True])
def test_a_list_of_a_hundred_inboxes_reads_as_much_of_twenty_thousand_as_of_four_hundred(
    *, ready: bool
) -> None:
    costs = []
    for inboxes in (10, 400, 20_000):
        store = Store()
        fill(store, inboxes)
        store.db.inboxes(limit=100, ready=ready)
        for _ in range(3):
            with store.db.begin() as tx:  # the heads change
                key = store.db.inboxes(limit=1)[0].key
                tx.reap_queue(key)
                tx.enqueue_message(key, b"again")
        costs.append(reads(store, partial(store.db.inboxes, limit=100, ready=ready)))
        store.db.close()
    assert costs[0] <= 20
    assert costs[1] <= 220
    assert costs[2] <= 220


def test_the_order_goes_when_nobody_asks_for_a_minute(store: Store) -> None:
    fill(store, 2000)
    store.db.inboxes(limit=1)
    assert store.node.root.replica.sizes()["inboxes in order"] == 2000
    store.advance(50)
    store.db.inboxes(limit=1)
    store.advance(50)
    assert store.node.root.replica.sizes()["inboxes in order"] == 2000
    store.advance(11)
    assert store.node.root.replica.sizes()["inboxes in order"] == 0
    assert store.node.root.replica.registry.on_written == []
    assert store.db.inboxes(limit=1)[0].key == b"001999"


def test_a_new_leaseholder_builds_the_order_anew(store: Store) -> None:
    fill(store, 2000)
    before = store.db.inboxes(limit=5)
    store.restart()
    assert store.node.root.replica.sizes()["inboxes in order"] == 0
    assert store.db.inboxes(limit=5) == before


def test_the_order_goes_with_the_lease(store: Store) -> None:
    fill(store, 2000)
    store.db.inboxes(limit=1)
    store.node.root.replica.stop_serving()
    assert store.node.root.replica.sizes()["inboxes in order"] == 0
    assert store.db.inboxes(limit=1)[0].key == b"001999"


def test_inboxes_that_are_held_up_are_not_read_for_those_that_are_ready(store: Store) -> None:
    fill(store, 1500)
    for number in range(1499, 1199, -1):
        key = b"%06d" % number
        with store.db.begin() as tx:
            tx.enqueue_message(key, b"behind")
        with store.db.begin() as tx:
            tx.postpone(tx.reap_queue(key, 1), 1000, "later", hold=True)
    assert store.db.inboxes(limit=5, ready=True)[0].key == b"001199"
    key = store.db.inboxes(limit=1)[0].key
    assert key == b"001199"
    assert store.db.inboxes(limit=1500)[-1].held_up
    assert reads(store, partial(store.db.inboxes, limit=5, ready=True)) <= 10
    store.advance(1100)
    assert not any(each.held_up for each in store.db.inboxes(limit=1500))


def test_a_span_of_few_inboxes_reads_these(store: Store) -> None:
    fill(store, 20_000)
    store.db.inboxes(limit=1)
    for start, end in ((b"000000", b"000100"), (b"019900", b"020000"), (b"3", b"4")):
        assert reads(store, partial(store.db.inboxes, start, end, limit=100)) <= 1000
        told = [each.oldest for each in store.db.inboxes(start, end, limit=100)]
        assert told == [each.oldest for each in reference(store.db, start, end, 100)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ordered_max", [65_536, 60])
def test_the_order_tells_what_reading_all_inboxes_tells(
    seed: int, ordered_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_index, "_PAGE", 7)
    monkeypatch.setattr(inbox_index, "_CHUNK", 4)
    monkeypatch.setattr(limits, "INBOXES_ORDERED_MAX", ordered_max)
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 64)
    random, store = Random(seed), Store()
    db = store.db
    for _ in range(150):
        key = b"%03d" % random.randrange(200)
        match random.randrange(6):
            case 0 | 1 | 2:
                with db.begin() as tx:
                    for _ in range(random.randrange(1, 9)):
                        tx.enqueue_message(b"%03d" % random.randrange(200), b"m")
            case 3:
                for each in db.inboxes(limit=random.randrange(1, 9)):
                    with db.begin() as tx:
                        tx.reap_queue(each.key, random.randrange(1, 3))
            case 4:
                for each in db.inboxes(key, limit=2, ready=True):
                    with db.begin() as tx:
                        taken = tx.reap_queue(each.key, 1)
                        hold = random.random() < 0.7
                        tx.postpone(taken, random.randrange(1, 30), "later", hold=hold)
            case _:
                store.advance(random.choice([0.5, 5, 70]))
        start, end = random.choice([(b"", None), (b"", key), (key, None), (b"050", b"060")])
        for ready in (False, True):
            limit = random.choice([1, 5, 1000])
            told = db.inboxes(start, end, limit=limit, ready=ready)
            wanted = reference(db, start, end, limit, ready=ready)
            assert [each.oldest for each in told] == [each.oldest for each in wanted]
            by_key = {each.key: each for each in reference(db, start, end, 1000, ready=ready)}
            assert all(by_key[each.key] == each for each in told)
            assert len({each.key for each in told}) == len(told)
    db.close()
