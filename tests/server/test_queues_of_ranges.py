"""Queues of a node with several ranges: made at the root, served in each range for its keys."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueSettings,
    UpdateQueue,
)
from postroom.messaging.queues.learning import Learning, learned_version
from postroom.messaging.queues.range_steps import RangeSteps
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.requests import CommitTransaction
from tests.client.stores import Store
from tests.server.splitting import ask, hosted, split

Q: Final = "work"
KEYS: Final = (b"a", b"n", b"z")
"""A key of each range."""

_numbers = itertools.count(1)


def commit(store: Store, write: Any, anchor: bytes = b"") -> Any:
    id_ = store.driver.next_id()
    now = store.node.clock.reading()
    return ask(store, CommitTransaction(id_, now, 60.0, 0, anchor, [], [], [write]))


def create(store: Store, **settings: Any) -> None:
    commit(store, CreateQueue(Q, QueueSettings(**settings)))
    store.advance(0.1)


def enqueue(store: Store, key: bytes, suffix: bytes = b"") -> None:
    id_ = key + suffix
    commit(store, EnqueueInQueue(Q, id_, "", id_, b"payload"), anchor=id_)


def ranges(store: Store) -> list[int]:
    """Return the ids of the ranges in the order of their keys."""
    return [store.node.replicas.by_key(key).range_id for key in KEYS]  # type: ignore[union-attr]


def counted(store: Store, what: str) -> list[int]:
    """Return a counter of the queue in each range."""
    queues = [hosted(store, each).messaging.queues for each in ranges(store)]
    return [getattr(each._directory.known(Q).counted, what) for each in queues]


def bodies(store: Store) -> int:
    """Return how many messages are stored."""
    found = [raw for raw, _ in store.node.engine.iterate(keys.DATA, keys.DATA_END)]
    return sum(raw[raw.index(keys.END_OF_KEY, 1) + 2 :][:1] == keys.QUEUE_BODY for raw in found)


def claim(store: Store, key: bytes) -> list[bytes]:
    """Claim what is ready in the range of a key."""
    replica = store.node.replicas.by_key(key)
    assert replica is not None
    bounds = replica.bounds
    consumer = store.driver.next_id()[:8] + next(_numbers).to_bytes(8, "big")
    homes = (bounds.start, bounds.end)
    request = ClaimQueue(Q, consumer, 10, ClaimSelection(), homes=homes)
    return [each.id for each in ask(store, request).messages]


def test_each_range_serves_the_messages_of_its_keys(store: Store) -> None:
    create(store)
    for key in KEYS:
        enqueue(store, key)
    assert counted(store, "ready") == [1, 1, 1]
    assert [claim(store, key) for key in KEYS] == [[key] for key in KEYS]
    assert counted(store, "leased") == [1, 1, 1]


def test_a_pause_holds_in_every_range(store: Store) -> None:
    create(store)
    for key in KEYS:
        enqueue(store, key)
    commit(store, UpdateQueue(Q, {}, paused=True))
    store.advance(0.1)
    assert [claim(store, key) for key in KEYS] == [[]] * 3
    commit(store, UpdateQueue(Q, {}, paused=False))
    store.advance(0.1)
    assert [claim(store, key) for key in KEYS] == [[key] for key in KEYS]


def test_a_dropped_queue_is_emptied_in_every_range_and_can_be_made_anew(store: Store) -> None:
    create(store)
    for key in KEYS:
        enqueue(store, key)
    commit(store, DropQueue(Q))
    store.advance(2.0)
    assert bodies(store) == 0
    create(store)
    for key in KEYS:
        enqueue(store, key, b"new")
    store.advance(2.0)
    assert bodies(store) == 3
    assert [claim(store, key) for key in KEYS] == [[key + b"new"] for key in KEYS]
    dropped = keys.dropped_queues_prefix(1)
    assert [*store.node.engine.iterate(dropped, keys.after_prefix(dropped))] == []


def test_a_name_is_not_free_before_all_ranges_have_learned_that_it_was_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    with monkeypatch.context() as patch:
        patch.setattr(Learning, "has_news", False)
        commit(store, DropQueue(Q))
        store.advance(5.0)
        with pytest.raises(Unavailable, match="was dropped"):
            create(store)
    store.advance(5.0)
    create(store)
    enqueue(store, b"z")
    assert claim(store, b"z") == [b"z"]


def test_a_lease_that_begins_anew_knows_the_queues(store: Store) -> None:
    create(store)
    enqueue(store, b"z")
    replica = hosted(store, ranges(store)[2]).replica
    replica.begin_anew()
    store.advance(0.1)
    assert claim(store, b"z") == [b"z"]


def test_the_order_of_a_queue_does_not_change(store: Store) -> None:
    create(store)
    with pytest.raises(Invalid, match="order"):
        commit(store, UpdateQueue(Q, {"order": "group"}))


def test_a_definition_changes_only_at_the_root(store: Store) -> None:
    for write in (CreateQueue(Q, QueueSettings()), DropQueue(Q)):
        with pytest.raises(Invalid, match="transaction of its own"):
            commit(store, write, anchor=b"z")


def test_ranges_that_have_learned_of_all_queues_write_nothing(store: Store) -> None:
    create(store)
    store.advance(1.0)
    before = [hosted(store, each).replica.state.applied_index() for each in ranges(store)]
    store.advance(1.0)
    for each in ranges(store):
        assert not hosted(store, each).messaging.queues.steps.is_due()
    after = [hosted(store, each).replica.state.applied_index() for each in ranges(store)]
    assert before == after


def test_the_right_half_of_a_split_knows_the_queues_that_the_left_one_knew() -> None:
    store = Store()
    create(store)
    commit(store, UpdateQueue(Q, {"purge_after": 1.0}))
    for key in KEYS:
        enqueue(store, key)
    for key in (b"m", b"w"):
        range_id = split(store, key).range_id
        assert learned_version(store.node.engine, range_id) == 2
    assert [claim(store, key) for key in KEYS] == [[key] for key in KEYS]
    store.db.close()


def test_a_queue_that_is_dropped_before_a_split_is_emptied_in_both_halves() -> None:
    store = Store()
    create(store)
    for key in KEYS:
        enqueue(store, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RangeSteps, "_empty_some", lambda *_: False)
        commit(store, DropQueue(Q))
        split(store, b"m")
        assert bodies(store) == 3
    create(store)
    enqueue(store, b"zebra")
    store.advance(5.0)
    assert bodies(store) == 1
    assert claim(store, b"z") == [b"zebra"]
    store.db.close()
