"""Long requests have a third of the time, if other principals want some, else all of it.

A turn takes ten milliseconds here. A long request keeps the writes of others waiting for many of
them, since it is one proposal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom import limits
from postroom.kv import keys
from postroom.ranges.evaluation import LONG_SHARE
from postroom.ranges.requests import CommitTransaction, Put
from tests.client.stores import Store
from tests.ranges.test_long_checks import Commit

TURN_SECONDS = 0.01
WRITES = 400
"""The number of writes of a long request: twenty turns of them."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 20 * LONG_SHARE)
    store = Store()
    yield store
    store.db.close()


def turn(store: Store) -> None:
    store.node.turn()
    store.clock.seconds += TURN_SECONDS


def long_commit(store: Store, principal: str = "bulk") -> Commit:
    writes = [Put(b"%s/%03d" % (principal.encode(), number), b"") for number in range(WRITES)]
    return Commit(store, *writes, principal=principal)


class Flood:
    """A principal that has a long request under way at any time.

    Attributes:
        done: the number of its requests that were answered.
    """

    def __init__(self, store: Store, principal: str = "bulk") -> None:
        self._store, self._principal = store, principal
        self.done = 0
        self._commit = long_commit(store, principal)

    def go_on(self) -> None:
        if self._commit.answers:
            self.done += 1
            self._commit = long_commit(self._store, self._principal)


def turns_of_puts(store: Store, floods: list[Flood], turns: int) -> list[int]:
    """Return for each put of a polite principal how many turns it took; one put at a time."""
    waited, since, put = [], 0, Commit(store, Put(b"polite", b""), principal="polite")
    for number in range(turns):
        for flood in floods:
            flood.go_on()
        if put.answers:
            waited.append(number - since)
            since, put = number, Commit(store, Put(b"polite", b""), principal="polite")
        turn(store)
    return waited


@pytest.mark.parametrize("principals", [["bulk"], ["one", "two", "three"]])
def test_others_have_two_thirds_of_the_time_beside_long_requests(
    store: Store, principals: list[str]
) -> None:
    floods = [Flood(store, principal) for principal in principals]
    waited = turns_of_puts(store, floods, 1000)
    at_once = [each for each in waited if each == 1]
    assert 560 <= sum(at_once) <= 740
    assert len(at_once) >= 0.9 * len(waited)
    assert sum(flood.done for flood in floods) >= 9
    assert all(flood.done for flood in floods)


def test_a_long_request_does_not_wait_if_no_other_principal_does(store: Store) -> None:
    flood = Flood(store)
    for _ in range(500):
        flood.go_on()
        Commit(store, Put(b"of its own", b""), principal="bulk")
        turn(store)
    alone = flood.done
    assert alone >= 12
    for _ in range(500):
        flood.go_on()
        turn(store)
    assert flood.done >= alone + 18


def test_a_long_request_that_waits_goes_on_when_the_time_of_others_is_over(store: Store) -> None:
    flood = Flood(store)
    while not flood.done:
        Commit(store, Put(b"polite", b""), principal="polite")
        flood.go_on()
        turn(store)
    for _ in range(6):  # it is put off: the polite one asks for the last time
        Commit(store, Put(b"polite", b""), principal="polite")
        turn(store)
    assert not store.node.wants_turn()
    deadline = store.node.next_deadline()
    assert deadline is not None
    assert store.clock.monotonic() < deadline < store.clock.monotonic() + 2 * WRITES * TURN_SECONDS
    store.clock.seconds = deadline - store.clock.monotonic() + store.clock.seconds
    assert store.node.wants_turn()
    while flood.done < 2:
        flood.go_on()
        turn(store)


def test_a_long_request_that_waits_is_not_begun_in_the_time_of_others(store: Store) -> None:
    flood = Flood(store)
    while not flood.done:
        Commit(store, Put(b"polite", b""), principal="polite")
        flood.go_on()
        turn(store)
    for _ in range(6):
        Commit(store, Put(b"polite", b""), principal="polite")
        turn(store)
    commands, begun = store.node.root.replica.registry.commands, list[str]()
    evaluate = commands[CommitTransaction]

    def noting(ctx: Any, request: Any) -> Any:
        begun.append("long" if len(request.writes) == WRITES else "put")
        return evaluate(ctx, request)

    commands[CommitTransaction] = noting
    for _ in range(3):
        Commit(store, Put(b"polite", b""), principal="polite")
        turn(store)
    assert begun == ["put"] * 3


def test_proposals_are_usual_again_when_the_time_of_others_is_over(store: Store) -> None:
    commit = long_commit(store)
    while not commit.answers:
        turn(store)
    evaluator = store.node.root.replica.evaluator
    assert not evaluator.is_at_rest
    store.clock.seconds += WRITES * TURN_SECONDS
    store.db.put(b"k", b"")
    assert evaluator.is_at_rest


def test_a_deposed_leaseholder_forgets_whose_time_it_is(store: Store) -> None:
    commit = long_commit(store)
    for _ in range(10):
        turn(store)
    share = store.node.root.replica.evaluator.time_share
    assert share.since is not None
    store.node.root.replica.stop_serving()
    assert commit.answers
    assert share.since is None
    store.driver.settle()
    store.db.put(b"after", b"")
    assert not share.until


def test_a_long_request_has_a_part_of_the_steps_of_a_turn(store: Store) -> None:
    """Reads wait for the end of a turn: a turn of nothing but a long request is a short one."""
    commit, turns = long_commit(store), 0
    while not commit.answers:
        turn(store)
        turns += 1
    assert WRITES // 20 <= turns <= WRITES // 20 + 10


def test_the_cache_does_not_get_all_keys_of_a_long_request(store: Store) -> None:
    commit = long_commit(store)
    Commit(store, Put(b"short", b""))
    while not commit.answers:
        turn(store)
    cache = store.node.root.replica.cache
    known = [cache.peek(keys.head_key(b"bulk/%03d" % number))[0] for number in range(WRITES)]
    assert sum(known) <= 20 * LONG_SHARE + 1, "as many as a whole turn has room for"
