"""A range splits beside transactions over several ranges, and waits for none that follow."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom.errors import Unavailable
from postroom.ranges.contract import ROOT_ID, KeySet
from postroom.ranges.requests import CommitTransaction, Increment
from postroom.ranges.split.records import last_range_id
from postroom.ranges.split.requests import CancelSplit, NewRangeId, PrepareSplit
from postroom.ranges.transactions.closed_keys import CLOSED_SECONDS, ClosedKeys
from tests.messaging.one_range import Asked
from tests.server.hosting import ThreeNodes

THREADS = 16
LEFT, MIDDLE, RIGHT = b"a", b"n", b"z"
"""Keys of range 1, of the left half of range 2, and of its right half."""
CUT = b"t"
BUSY = 40
TURNS_MAX = 200

_numbers = itertools.count(1)


def count(value: object) -> int:
    """Return the number that is stored in a counter."""
    return int.from_bytes(value, "big") if isinstance(value, bytes) else 0


# --- a store with many threads


def test_a_split_takes_place_beside_many_threads_and_none_of_their_transactions_fails() -> None:
    with postroom.open(":memory:") as db:
        db.split(b"m")
        done, is_over, failed = [0] * THREADS, threading.Event(), list[BaseException]()

        def work(number: int) -> None:
            def once(tx: postroom.Transaction) -> None:
                for key in (LEFT, RIGHT):
                    tx.increment(key + b"%d" % (number % 4), 1)

            try:
                while not is_over.is_set():
                    db.run(once)
                    done[number] += 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            for cut in (CUT, b"s", b"u"):
                assert db.split(cut).start == cut
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert not failed
        for key in (LEFT, RIGHT):
            found = sum(count(db.get(key + b"%d" % number)) for number in range(4))
            assert found == sum(done)


# --- three nodes, step by step


@pytest.fixture
def store() -> Iterator[ThreeNodes]:
    """Return three nodes, of which node 1 leads range 1 and node 2 leads range 2."""
    made = ThreeNodes()
    made.lead(1, 1)
    made.lead(2, 2)
    yield made
    made.close()


def commit(store: ThreeNodes, *keys: bytes) -> Asked:
    """Send a commit to the range of its first key."""
    began = store.nodes[1].clock.reading()
    request: CommitTransaction[Any] = CommitTransaction(
        b"a client" + next(_numbers).to_bytes(8, "big"), began, 60.0, 0, keys[0], [], [],
        [Increment(key) for key in keys],
    )  # fmt: skip
    return send(store, request)


def send(store: ThreeNodes, request: CommitTransaction[Any]) -> Asked:
    asked = Asked(request)
    store.nodes[1 if request.anchor < b"m" else 2].replicas.submit(asked)
    return asked


def turn(store: ThreeNodes) -> None:
    clock = store.clock.seconds
    store.until(lambda: store.clock.seconds > clock)


def prepare_split(store: ThreeNodes) -> None:
    range_id = store.ask(1, NewRangeId())
    store.until(lambda: last_range_id(store.nodes[2].engine, ROOT_ID) == range_id)
    store.ask(2, PrepareSplit(CUT, range_id))


@pytest.mark.parametrize("anchor", ["left", "right"])
def test_a_split_ends_within_few_turns_beside_transactions_that_follow_each_other(
    store: ThreeNodes, anchor: str
) -> None:
    """Another commit is sent in each turn, so that some are always prepared."""
    pair = (LEFT, RIGHT) if anchor == "left" else (RIGHT, LEFT)
    under_way, again = list[Asked](), list[CommitTransaction[Any]]()
    refused = 0

    def one_turn() -> None:
        nonlocal refused
        name = b"%d" % next(_numbers)
        under_way.append(commit(store, *(key + name for key in pair)))
        turn(store)
        for each in [each for each in under_way if each.answers]:
            under_way.remove(each)
            _, error = each.answers[0]
            if error is not None:
                assert isinstance(error, Unavailable), error
                assert "nothing was changed" in str(error)
                again.append(each.request)
                refused += 1

    for _ in range(BUSY):
        one_turn()
    prepare_split(store)
    second = store.hosted(2, 2).replica
    for turns in itertools.count():
        if second.bounds.descriptor.end == CUT:
            break
        assert turns < TURNS_MAX, "the split starves"
        one_turn()
    assert refused
    store.until(lambda: all(each.answers for each in under_way))
    again += [each.request for each in under_way if each.answers[0][1] is not None]
    store.until(lambda: all(3 in node.replicas.hosted for node in store.nodes.values()))
    store.awaited_leader(3)
    for request in again:
        asked = Asked(request)
        leader = store.leader(1 if request.anchor < b"m" else 3) or 0
        store.nodes[leader].replicas.submit(asked)
        store.until(lambda asked=asked: asked.answers)  # type: ignore[misc]
        assert asked.answers[0][1] is None


def test_a_refused_transaction_leaves_nothing_prepared_in_its_other_ranges() -> None:
    store = ThreeNodes(b"m", b"x")
    for range_id in (1, 2, 3):
        store.lead(range_id, range_id)
    store.hosted(2, 2).replica.intents.closed.close(CUT)
    asked = commit(store, LEFT, b"u", b"y")
    store.until(lambda: asked.answers, 1.0)
    assert isinstance(asked.answers[0][1], Unavailable)
    third = store.hosted(3, 3).replica.intents
    store.until(lambda: not third, 1.0)
    assert commit(store, LEFT, MIDDLE), "keys of the left half are open"
    store.close()


def test_a_split_does_not_wait_for_a_coordinator_that_hangs(store: ThreeNodes) -> None:
    store.hosted(1, 1).replica.transactions.coordinator._take_answers = lambda: None  # type: ignore[union-attr]
    hung = commit(store, LEFT, RIGHT)
    second = store.hosted(2, 2).replica
    store.until(lambda: second.intents)
    prepare_split(store)
    begun = store.clock.seconds
    store.until(lambda: second.bounds.descriptor.end == CUT, 4.0)
    assert store.clock.seconds - begun < 3.2
    assert hung.answers[0][1] is not None


def test_a_cancelled_split_leaves_no_key_closed(
    store: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_wait(*_: Any) -> bool:
        return True

    monkeypatch.setattr("postroom.messaging.halves.MessagingHalves.must_wait", must_wait)
    prepare_split(store)
    second = store.hosted(2, 2).replica
    second.intents.closed.close(CUT)
    assert store.ask(2, CancelSplit(CUT))
    assert not second.intents.closed
    asked = commit(store, LEFT, RIGHT)
    store.until(lambda: asked.answers)
    assert asked.answers[0][1] is None


# --- closed keys


def test_keys_stay_closed_for_a_time_and_are_open_for_as_long() -> None:
    now = [100.0]
    closed = ClosedKeys(lambda: now[0])
    seen = []
    for _ in range(40):
        closed.close(b"m")
        seen.append(bool(closed))
        now[0] += CLOSED_SECONDS / 10
    assert seen == ([True] * 10 + [False] * 10) * 2
    closed.close(b"x")
    assert closed, "of another split"


def test_the_keys_from_the_first_closed_one_on_are_closed() -> None:
    closed = ClosedKeys(lambda: 0.0)
    assert not closed.contain(KeySet((b"z",), ((b"", None),)))
    closed.close(b"m")
    assert closed.contain(KeySet((b"a", b"m")))
    assert closed.contain(KeySet((), ((b"a", b"m\x00"),)))
    assert closed.contain(KeySet((), ((b"a", None),)))
    assert not closed.contain(KeySet((b"a", b"l"), ((b"", b"m"),)))
    closed.open()
    assert not closed.contain(KeySet((b"z",)))
