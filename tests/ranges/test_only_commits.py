"""Tests that work of other kinds ends the turns that have only commits to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroom.errors import Unavailable
from postroom.messaging.services import DELIVER_DUE
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.calls import Call
from postroom.ranges.lease import LEASE_SECONDS
from postroom.ranges.replica import Replica
from postroom.ranges.requests import Get, GetForUpdate, Put, ScanChanges
from tests.client.stores import Store
from tests.messaging.queues.harness import Queues
from tests.remote.session_client import commit


@pytest.fixture
def store() -> Iterator[Store]:
    """Yield a store in which a commit is the last thing that was done."""
    made = Store()
    made.db.put(b"k", b"v")
    made.db.put(b"k", b"w")
    assert made.node.root.replica.reads.only_commits
    yield made
    made.node.close()


def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    "add",
    [
        lambda replica: replica.submit(_Told(DELIVER_DUE, urgent=False)),
        lambda replica: replica.submit(_Told(GetForUpdate(b"k", 0, bytes(16), 60.0))),
        lambda replica: replica.submit(_Told(ScanChanges(b"", None, 1 << 62))),
        lambda replica: replica.refuse(RefusedCalls(Unavailable("no room"))),
        lambda replica: replica.hand_over(_nothing),
        lambda replica: replica.resume(),
        lambda replica: replica.wake_up(),
        lambda replica: replica.on_leadership(False, 1),
        lambda replica: replica.stop_serving(),
        lambda replica: replica.begin_turn(),
    ],
    ids=[
        "upkeep", "a lock", "a read that waits", "a refusal", "a handover", "its end", "a service",
        "a lost lead", "a lost lease", "a general turn",
    ],
)  # fmt: skip
def test_work_of_another_kind_ends_it(store: Store, add: Callable[[Replica], None]) -> None:
    replica = store.node.root.replica
    add(replica)
    assert not replica.reads.only_commits


def test_a_read_that_is_answered_at_once_leaves_it(store: Store) -> None:
    told = _Told(Get(b"k"))
    store.node.root.replica.submit(told)
    assert told.answers == [None]
    assert store.node.root.replica.reads.only_commits


def test_sessions_end_it(store: Store) -> None:
    """They take requests in when a turn begins."""
    begun = []
    store.node.replicas.on_room(lambda: begun.append(1))
    store.db.put(b"k", b"x")
    assert begun
    assert not store.node.root.replica.reads.only_commits


def test_upkeep_is_evaluated_beside_commits(store: Store) -> None:
    pending = store.node.root.upkeep(DELIVER_DUE)
    store.db.put(b"k", b"x")
    assert pending.done
    assert store.node.root.replica.reads.only_commits


def test_a_commit_waits_for_the_lease_if_that_is_over(store: Store) -> None:
    store.node.root.services.stop()  # they add other work, and so does the guard of the disk
    store.node._guard.look_at = math.inf
    store.clock.seconds += 10 * LEASE_SECONDS
    told = _Told(commit(store, 9, Put(b"k", b"x")))
    store.node.root.replica.submit(told)
    store.node.turn()
    assert not told.answers, "this turn has asked for the lease"
    store.node.turn()
    assert told.answers == [None]


def test_a_lock_that_is_held_for_too_long_is_released_beside_commits(store: Store) -> None:
    replica = store.node.root.replica
    with store.db.begin(timeout=60) as tx:
        tx.get_for_update(b"k")
        store.db.put(b"other", b"x")
        assert replica.reads.only_commits
        assert len(replica.holders) == 1
        store.clock.seconds += 61
        replica.submit(_Told(commit(store, 9, Put(b"other", b"y"))))
        store.node.turn()
        assert len(replica.holders) == 0
        tx.rollback()


def test_a_lock_that_is_held_for_too_long_is_released_without_commits(store: Store) -> None:
    replica = store.node.root.replica
    with store.db.begin(timeout=60) as tx:
        tx.get_for_update(b"k")
        store.db.put(b"other", b"x")
        assert replica.reads.only_commits
        store.clock.seconds += 61
        replica.turn()
        assert len(replica.holders) == 0
        tx.rollback()


def test_a_batch_that_goes_on_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commits are evaluated in the usual way; that it is completed takes several turns."""
    queues = Queues()
    queues.create()
    queues.enqueue(b"first")
    monkeypatch.setattr("postroom.limits.COMPLETED_AT_ONCE_MAX", 4)
    replica, node = queues.store.node.root.replica, queues.store.node
    assert replica.reads.only_commits
    writes = [queues.message(b"%d" % number) for number in range(20)]
    told = _Told(commit(queues.store, 9, *writes))
    replica.submit(told)
    node.turn()
    assert not told.answers
    assert not replica.reads.only_commits
    while node.wants_turn():
        node.turn()
    assert told.answers == [None]
    node.close()


class _Told(Call):
    """A call that keeps the errors with which it is answered."""

    def __init__(self, request: Any, *, urgent: bool = True) -> None:
        super().__init__(request, urgent=urgent)
        self.answers: list[BaseException | None] = []

    def complete(self, result: Any, error: BaseException | None) -> None:
        del result
        self.answers.append(error)
