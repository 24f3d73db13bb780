"""Long checks of a commit's reads, made beside the proposals: nothing is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom import limits
from postroom.errors import TransactionConflict
from postroom.ranges.calls import Call
from postroom.ranges.long_checks import CheckedReads
from postroom.ranges.requests import CommitTransaction, Delete, DeleteRange, Put
from tests.client.stores import Store

KEYS = 300


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 40)
    store = Store()
    for first in range(0, KEYS, 20):
        with store.db.begin() as tx:
            for number in range(first, first + 20):
                tx.put(key(number), b"")
    yield store
    store.db.close()


def key(number: int) -> bytes:
    return b"key/%04d" % number


class Commit(Call):
    """One request of a client.

    Attributes:
        answers: how it was answered.
    """

    __slots__ = ("answers", "principal")
    numbers = iter(range(1, 1 << 30))

    def __init__(self, store: Store, *writes: Any, principal: str = "", **read: Any) -> None:
        number = next(self.numbers)
        began = store.node.clock.reading()
        at, reads, spans = read.get("at", 0), read.get("reads", []), read.get("spans", [])
        id_ = number.to_bytes(16, "big")
        super().__init__(CommitTransaction(id_, began, 60.0, at, b"k", reads, spans, list(writes)))
        self.principal = principal
        self.answers: list[BaseException | None] = []
        store.node.replicas.submit(self)

    def complete(self, result: Any, error: BaseException | None) -> None:
        del result
        self.answers.append(error)

    @property
    def conflicts(self) -> bool:
        (answer,) = self.answers
        assert answer is None or isinstance(answer, TransactionConflict), answer
        return answer is not None


def spans() -> list[tuple[bytes, bytes]]:
    """Return all keys but those whose number ends with 5, as spans."""
    return [(key(number), key(number) + b"\x00") for number in range(KEYS) if number % 10 != 5]


READS: dict[str, Callable[[], dict[str, Any]]] = {
    "spans": lambda: {"spans": spans()},
    "reads": lambda: {"reads": [start for start, _ in spans()]},
    "a span": lambda: {"spans": [(key(0), key(4)), (key(6), None)]},
}


def begin(store: Store, read: str, **more: Any) -> Commit:
    at = store.node.root.replica.last_commit
    store.db.put(b"elsewhere", b"")
    return Commit(store, Put(b"done", b""), at=at, **READS[read](), **more)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("turns", [1, 5, 9, 12])
@pytest.mark.parametrize("number", [2, 150, 299])
@pytest.mark.parametrize("write", [lambda key: Put(key, b"v"), Delete])
def test_a_write_of_what_is_being_checked_is_a_conflict(
    store: Store, read: str, turns: int, number: int, write: Callable[[bytes], Any]
) -> None:
    commit = begin(store, read)
    for _ in range(turns):
        store.node.turn()
    assert not commit.answers
    between = Commit(store, write(key(number)))
    store.driver.settle()
    assert (between.conflicts, commit.conflicts) == (False, True)
    assert store.db.get(b"done") is None


@pytest.mark.parametrize("read", ["spans", "reads"])
def test_writes_elsewhere_go_on_and_are_no_conflict(store: Store, read: str) -> None:
    commit, others = begin(store, read), []
    while not commit.answers:
        others.append(Commit(store, Put(key(10 * (len(others) % 30) + 5), b"v")))
        store.node.turn()
    assert not commit.conflicts
    assert len(others) > 10
    assert not any(each.conflicts for each in others[:-1]), "each was answered in its turn"
    store.driver.settle()
    assert store.db.get(b"done") == b""


def test_a_deletion_of_a_span_is_a_conflict(store: Store) -> None:
    commit = begin(store, "spans")
    for _ in range(4):
        store.node.turn()
    Commit(store, DeleteRange(key(20), key(24)))
    store.driver.settle()
    assert commit.conflicts


def test_a_write_of_another_long_commit_is_a_conflict(store: Store) -> None:
    """One of two commits takes place if each writes what the other one has read."""
    at = store.node.root.replica.last_commit
    store.db.put(b"elsewhere", b"")
    one = Commit(store, Put(key(1), b"1"), at=at, principal="one", **READS["spans"]())
    two = Commit(store, Put(key(2), b"2"), at=at, principal="two", **READS["reads"]())
    store.driver.settle()
    assert sorted([one.conflicts, two.conflicts]) == [False, True]


def begin_both(store: Store) -> tuple[Commit, Commit]:
    at = store.node.root.replica.last_commit
    store.db.put(b"elsewhere", b"")
    first = Commit(store, Put(b"done", b""), at=at, **READS["spans"]())
    return first, Commit(store, Put(b"d", b""), at=at, principal="other", **READS["reads"]())


def test_a_check_under_way_ends_with_the_lease(store: Store) -> None:
    commit, waiting = begin_both(store)
    for _ in range(4):
        store.node.turn()
    store.node.root.replica.stop_serving()
    assert (len(commit.answers), len(waiting.answers)) == (1, 1)
    assert not store.node.root.replica.evaluator.is_behind
    store.driver.settle()
    store.db.put(b"after", b"")


def test_a_check_that_is_cancelled_is_given_up(store: Store) -> None:
    commit, other = begin_both(store)
    for _ in range(4):
        store.node.turn()
    store.node.replicas.cancel(commit)
    store.driver.settle()
    assert (commit.answers, other.conflicts) == ([], False)
    assert not store.node.root.replica.evaluator.is_behind


@pytest.mark.parametrize("seed", range(5))
def test_a_check_hears_of_exactly_what_it_has_seen(seed: int) -> None:
    chance = Random(seed)
    bounds = sorted({chance.randrange(200) for _ in range(40)})
    seen = list(zip(bounds[::2], bounds[1::2], strict=False))
    for number in range(200):
        checking = CheckedReads(Store().engine, 0)
        for start, end in seen:
            checking.sees_span(key(start), key(end))
        checking.sees_key(key(7))
        checking.hear(key(number))
        is_seen = number == 7 or any(start <= number < end for start, end in seen)
        assert (checking.changed is not None) == is_seen
