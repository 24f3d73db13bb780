"""A range with nothing for a claim tells which other ranges of its node have nothing either."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom.messaging.queues import node_claims
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue, ClaimSelection, HomeSpan
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.ranges.lease import LEASE_SECONDS
from postroom.ranges.local_reads import LocalReads
from tests.client.stores import Store
from tests.server.splitting import ask, hosted, split
from tests.server.test_node_claims import commit, enqueue
from tests.server.test_queues_of_ranges import KEYS, Q

_numbers = itertools.count(1)


@pytest.fixture
def store(store: Store) -> Store:
    """Return a store with three ranges that have used a queue."""
    commit(store, CreateQueue(Q, QueueSettings(ack_wait=60.0)))
    store.advance(0.1)
    for key in KEYS:
        claim(store, key)
    return store


def claim(store: Store, key: bytes, *kinds: str) -> Claimed:
    """Claim from the range of a key, without a wait."""
    replica = store.node.replicas.by_key(key)
    assert replica is not None
    homes = (replica.bounds.start, replica.bounds.end)
    consumer = store.driver.next_id()[:8] + next(_numbers).to_bytes(8, "big")
    selection = ClaimSelection(kinds=list(kinds) or None)
    found: Claimed = ask(store, ClaimQueue(Q, consumer, 10, selection, homes=homes))
    return found


def queues_at(store: Store, key: bytes) -> RangeQueues:
    """Return the queues of the range of a key."""
    replica = store.node.replicas.by_key(key)
    assert replica is not None
    return hosted(store, replica.range_id).messaging.queues


def told(store: Store, key: bytes, *kinds: str) -> list[bytes]:
    """Return the keys (of ``KEYS``) whose ranges are told to have nothing."""
    answer = claim(store, key, *kinds)
    assert not answer.messages
    return [each for each in KEYS if is_in(each, answer.without)]


def is_in(key: bytes, spans: list[HomeSpan]) -> bool:
    return any(start <= key and (end is None or key < end) for start, end in spans)


def test_a_claim_that_gets_nothing_is_told_of_all_ranges_with_nothing(store: Store) -> None:
    assert all(told(store, key) == [*KEYS] for key in KEYS)
    enqueue(store, b"n", "mail")
    assert told(store, b"z") == [b"a", b"z"]
    assert told(store, b"z", "fax") == [*KEYS]
    assert told(store, b"z", "mail") == [b"a", b"z"]


def test_ranges_that_touch_are_told_of_as_one_span(store: Store) -> None:
    assert claim(store, b"z").without == [(b"", None)]


def test_a_range_that_has_not_used_the_queue_is_not_told_of(store: Store) -> None:
    split(store, b"p")
    assert told(store, b"a") == [b"a", b"z"]


def test_the_halves_of_a_range_are_told_of_apart(store: Store) -> None:
    split(store, b"p")
    claim(store, b"n")
    claim(store, b"z")
    enqueue(store, b"p1")
    answer = claim(store, b"a")
    assert is_in(b"n", answer.without)
    assert not is_in(b"p1", answer.without)


def test_a_range_whose_lease_is_over_is_not_told_of(store: Store) -> None:
    """Another node may have it, and messages there."""
    store.advance(LEASE_SECONDS + 1.0)
    assert told(store, b"a") == [b"a"]
    claim(store, b"n")
    assert told(store, b"a") == [b"a", b"n"]


def test_a_claim_extends_no_lease_but_one_in_an_embedded_store() -> None:
    store = Store(rests_alone=True)
    queue = store.db.create_queue(Q)
    for key in KEYS[1:]:
        split(store, key)
    queue.claim(1)
    store.advance(LEASE_SECONDS + 1.0)
    assert store.writes_of(lambda: queue.claim(1)) <= 2


def test_a_range_whose_node_lags_is_not_told_of(store: Store) -> None:
    """Its queue may be another one of that name, which was dropped."""
    queues_at(store, b"n")._learning.knows = False
    assert told(store, b"a") == [b"a", b"z"]


def test_a_turn_is_charged_for_each_range_that_is_looked_at(store: Store) -> None:
    replica = store.node.replicas.by_key(b"n")
    assert replica is not None
    before = replica.reads._view.steps
    claim(store, b"n")
    assert replica.reads._view.steps >= before + len(KEYS)


def test_a_claim_keeps_its_selection_in_its_own_range_alone(store: Store) -> None:
    """It may be large, and differ for each claim."""
    assert told(store, b"a", "fax") == [*KEYS]
    kept = [[*queues_at(store, key)._by_name[Q].wishes] for key in KEYS]
    assert [*map(len, kept)] == [1, 0, 0]


def test_a_claim_looks_at_some_ranges_behind_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_claims, "RANGES_LOOKED_AT", 1)
    assert told(store, b"a") == [b"n"]
    assert told(store, b"n") == [b"z"]
    assert told(store, b"z") == [b"a"]


def test_the_bounds_of_ranges_that_an_answer_tells_are_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_claims, "WITHOUT_BYTES", 1)
    assert len(told(store, b"z")) < len(KEYS)


@pytest.fixture
def many() -> Iterator[postroom.Database]:
    """Return an embedded store with forty ranges, and a queue that each of them knows."""
    with postroom.open(":memory:") as db:
        for number in range(39):
            db.split(b"%02d" % number)
        db.create_queue(Q)
        db.queue(Q).claim(1)
        yield db


def test_a_claim_does_not_ask_ranges_with_nothing(
    many: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, claims, read = many.queue(Q), list[ClaimQueue](), LocalReads.read

    def counted(self: LocalReads, call: Any, evaluator: Any) -> Any:
        claims.extend([call.request] if type(call.request) is ClaimQueue else [])
        return read(self, call, evaluator)

    monkeypatch.setattr(LocalReads, "read", counted)
    assert queue.claim(10) == []
    assert len(claims) <= 2
    for _ in range(20):
        claims.clear()
        with many.begin() as tx:
            tx.enqueue(Q, b"x")
        assert [each.payload for each in queue.claim(10, wait=5.0)] == [b"x"]
        assert len(claims) <= 5


def test_a_claim_gets_what_a_transaction_that_rolled_back_had_claimed(
    many: postroom.Database,
) -> None:
    with many.begin() as tx:
        tx.enqueue(Q, b"x")
    for _ in range(5):
        tx = many.begin()
        assert len(tx.claim(Q, 1)) == 1
        tx.rollback()
    assert len(many.queue(Q).claim(1)) == 1
