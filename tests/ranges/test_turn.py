"""A turn of several replicas, step by step: nobody sees another one half-way."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from postroom.errors import ConditionFailed
from postroom.kv import keys
from postroom.kv.clock import from_milliseconds
from postroom.messaging.requests import EnqueueMessage
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.requests import CommitTransaction, ConditionalPut, Get, Increment, Put
from postroom.ranges.turn import take_turn
from tests.messaging.one_range import EPOCH_MILLISECONDS, Asked, OneRange

BEGAN: Final = from_milliseconds(EPOCH_MILLISECONDS)


class _Follows(Asked):
    """A call whose caller asks something else as soon as it is answered."""

    def __init__(self, request: Any, other: OneRange, then: Asked) -> None:
        super().__init__(request)
        self._other, self._then = other, then

    def complete(self, result: Any, error: BaseException | None) -> None:
        super().complete(result, error)
        self._other.replica.submit(self._then)


def _commit(*writes: Any) -> CommitTransaction[Any]:
    return CommitTransaction(os.urandom(16), BEGAN, 60.0, 0, b"k", [], [], list(writes))


def _held(*, is_general_only: bool | None = None) -> OneRange:
    one_range = OneRange(is_general_only=is_general_only)
    one_range.ask(_commit(Put(b"k", b"old")))
    one_range.group.holds = True
    return one_range


def test_a_read_after_an_immediate_answer_sees_the_write_in_another_range() -> None:
    """The failing request has nothing to write, and is answered in this very turn.

    By then the write in the other range has its timestamp: a later read must not miss it.
    """
    first, second = _held(), _held()
    read, write = Asked(Get(b"k")), Asked(_commit(Put(b"k", b"new")))
    failing = _Follows(_commit(ConditionalPut(b"k", b"x", b"other")), second, read)
    first.replica.submit(failing)
    second.replica.submit(write)
    take_turn((first.replica, second.replica))
    assert isinstance(failing.answers[0][1], ConditionFailed)
    assert not write.answers
    assert not read.answers
    second.end(ProposalOutcome.APPLIED)
    assert write.answers
    assert read.answers[0][0].value == b"new"


def test_each_makes_the_proposal_that_it_makes_alone() -> None:
    together, alone = [_held() for _ in range(3)], [_held() for _ in range(3)]
    for number, both in enumerate(zip(together, alone, strict=True)):
        for _ in range(number):
            commit = _commit(Increment(b"n"), EnqueueMessage(b"m", b"hello"))
            for one_range in both:
                one_range.replica.submit(Asked(commit))
    take_turn([one_range.replica for one_range in together])
    for one_range in alone:
        take_turn((one_range.replica,))
    for one, other in zip(together, alone, strict=True):
        assert [p.packed for p, _ in one.group.proposed] == [
            p.packed for p, _ in other.group.proposed
        ]
    assert [len(one_range.group.proposed) for one_range in together] == [0, 1, 1]


def test_an_error_in_one_proposal_does_not_stop_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _held(is_general_only=True), _held()

    def fail(_: object) -> None:
        raise ArithmeticError("no sum")

    monkeypatch.setattr(first.replica.proposer, "_finish", fail)
    asked = [Asked(_commit(Put(b"k", b"new"))) for _ in range(2)]
    for one_range, each in zip((first, second), asked, strict=True):
        one_range.replica.submit(each)
    take_turn((first.replica, second.replica))
    second.end(ProposalOutcome.APPLIED)
    assert isinstance(asked[0].answers[0][1], ArithmeticError)
    assert asked[1].answers[0][1] is None
    assert first.engine.get(keys.head_key(b"k")) != second.engine.get(keys.head_key(b"k"))
    monkeypatch.undo()
    again = Asked(_commit(Put(b"k", b"new")))
    first.replica.submit(again)
    take_turn((first.replica, second.replica))
    first.end(ProposalOutcome.APPLIED)
    assert again.answers[0][1] is None
