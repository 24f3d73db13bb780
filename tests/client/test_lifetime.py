"""The states of a transaction: the table, and that what happens to one follows it."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random  # noqa: TID251 (seeded)
from types import SimpleNamespace
from typing import Any

import pytest

from postroom.client.codec import resolve
from postroom.client.lifetime import TRANSITIONS, Event, Lifetime, TransactionState
from postroom.client.sender import TransactionIds
from postroom.client.transaction import Transaction
from postroom.errors import (
    CommitUnknown,
    TransactionClosed,
    TransactionConflict,
    TransactionExpired,
    Unavailable,
)
from postroom.ranges.requests import Committed, ReleaseLocks

ENDS = {TransactionState.COMMITTED, TransactionState.NOT_COMMITTED, TransactionState.ROLLED_BACK}
TAKES_CALLS = {TransactionState.OPEN}
MAY_END = {TransactionState.OPEN, TransactionState.UNKNOWN}


class Answers:
    """A sender that answers each commit with the next thing of a list."""

    def __init__(self, *answers: Any) -> None:
        self.random = Random(1)
        self.next_id = TransactionIds(bytes(8))
        self.patience_seconds = 0.0
        self.ranges, self.range_of = SimpleNamespace(are_several=False), None
        self.answers = list(answers)
        self.posted: list[Any] = []
        self.seconds = 0.0

    async def _answer(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def send(self, request: Any, timeout_seconds: float | None = None) -> Any:
        if isinstance(request, ReleaseLocks):  # no caller awaits the answer
            return self.posted.append(request)
        return self._answer()

    def try_get(self, key: bytes) -> None:
        """Return no answer at once, since everything is asked for."""

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def now(self) -> int:
        return 1

    def reading(self) -> int:
        return 1

    def range_id(self, _: bytes) -> int:
        return 1

    def monotonic(self) -> float:
        return self.seconds


def done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never has to wait."""
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


def transaction(*answers: Any) -> tuple[Transaction, Lifetime, Answers]:
    sender = Answers(*answers)
    tx = Transaction(sender, resolve(None), bytes(16), 60.0)
    tx.put(b"k", b"v")
    return tx, tx._lifetime, sender


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    reached = {TransactionState.OPEN}
    while found := {s for each in reached for s in TRANSITIONS[each].values()} - reached:
        reached |= found
    assert reached == set(TransactionState) == set(TRANSITIONS)


def test_ends_lead_nowhere_and_everything_else_leads_to_an_end() -> None:
    assert {state for state in TransactionState if not TRANSITIONS[state]} == ENDS
    for state in set(TransactionState) - ENDS:
        seen = {state}
        while found := {s for each in seen for s in TRANSITIONS[each].values()} - seen:
            seen |= found
        assert TransactionState.COMMITTED in seen


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", TransactionState)
def test_a_transition_outside_the_table_is_impossible(
    state: TransactionState, event: Event
) -> None:
    lifetime = Lifetime(Answers(), bytes(16), 60.0, 1, 60.0)
    lifetime.state = state
    if event in TRANSITIONS[state]:
        lifetime.to(event)
        assert lifetime.state is TRANSITIONS[state][event]
        assert (not lifetime.closed) is (lifetime.state in TAKES_CALLS)
        assert lifetime.may_end is (lifetime.state in MAY_END)
    else:
        with pytest.raises(KeyError):
            lifetime.to(event)
        assert lifetime.state is state


def test_a_commit_that_is_made() -> None:
    tx, lifetime, _ = transaction(Committed(5, []))
    assert done(tx.commit()) == 5
    assert lifetime.state is TransactionState.COMMITTED
    with pytest.raises(TransactionClosed, match="committed already"):
        tx.put(b"k", b"w")


def test_a_transaction_without_writes_commits_at_once() -> None:
    lifetime = (tx := Transaction(Answers(), resolve(None), bytes(16), 60.0))._lifetime
    done(tx.commit())
    assert lifetime.state is TransactionState.COMMITTED


def test_a_commit_that_is_refused() -> None:
    tx, lifetime, _ = transaction(TransactionConflict("changed"))
    with pytest.raises(TransactionConflict):
        tx.commit().send(None)
    assert lifetime.state is TransactionState.NOT_COMMITTED


def test_a_commit_whose_time_is_over() -> None:
    tx, lifetime, sender = transaction()
    sender.seconds = 61.0
    with pytest.raises(TransactionExpired):
        tx.commit().send(None)
    assert lifetime.state is TransactionState.NOT_COMMITTED


@pytest.mark.parametrize("lost", [CommitUnknown("lost"), GeneratorExit()])
@pytest.mark.parametrize(
    ("told", "state"),
    [
        (Committed(5, []), TransactionState.COMMITTED),
        (TransactionConflict("changed"), TransactionState.NOT_COMMITTED),
        (Unavailable("down"), TransactionState.UNKNOWN),
        (CommitUnknown("lost again"), TransactionState.UNKNOWN),
    ],
)
def test_a_commit_without_an_answer_is_asked_about(
    lost: BaseException, told: Any, state: TransactionState
) -> None:
    tx, lifetime, sender = transaction(lost, told)
    with pytest.raises(type(lost)):
        tx.commit().send(None)
    assert lifetime.state is TransactionState.UNKNOWN
    with pytest.raises(TransactionClosed, match="commit it again"):
        tx.put(b"k", b"v")
    sender.seconds = 61.0  # its time does not matter any more
    with pytest.raises((StopIteration, TransactionConflict, CommitUnknown)):
        tx.commit().send(None)
    assert lifetime.state is state


@pytest.mark.parametrize("answers", [[], [CommitUnknown("lost")]])
def test_rolled_back(answers: list[Any]) -> None:
    tx, lifetime, sender = transaction(*answers)
    lifetime.holds = True
    for _ in answers:
        with pytest.raises(CommitUnknown):
            tx.commit().send(None)
    done(tx.rollback())
    assert lifetime.state is TransactionState.ROLLED_BACK
    assert sender.posted == [ReleaseLocks(bytes(16))]


def test_a_transaction_that_is_being_committed_takes_no_calls() -> None:
    tx, lifetime, _ = transaction()
    lifetime.to(Event.SEND)
    with pytest.raises(TransactionClosed, match="being committed"):
        tx.put(b"k", b"w")
