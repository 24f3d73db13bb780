"""Long reads go on between proposals, and come to their end beside any number of them."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from postroom import limits
from postroom.kv.clock import from_milliseconds
from postroom.messaging.requests import EnqueueMessage, ListInboxes
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.requests import CommitTransaction, Get, Lock
from tests.messaging.one_range import EPOCH_MILLISECONDS, Asked, OneRange

BEGAN: Final = from_milliseconds(EPOCH_MILLISECONDS)
INBOXES: Final = 100
STEPS: Final = 20
"""The steps of a turn: a list of the inboxes takes five turns."""


def _send(*inboxes: bytes) -> CommitTransaction[Any]:
    messages = [EnqueueMessage(inbox, b"value") for inbox in inboxes]
    return CommitTransaction(os.urandom(16), BEGAN, 60.0, 0, b"k", [], [], messages)


@pytest.fixture
def one_range(monkeypatch: pytest.MonkeyPatch) -> OneRange:
    one_range = OneRange()
    one_range.ask(_send(*[b"inbox/%03d" % number for number in range(INBOXES)]))
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", STEPS)
    one_range.group.holds = True
    return one_range


def test_a_long_read_ends_although_each_proposal_writes_what_it_reads(one_range: OneRange) -> None:
    read, rounds = Asked(ListInboxes(b"", None, INBOXES, by_key=True)), 0
    one_range.replica.submit(read)
    while not read.answers:
        rounds += 1
        assert rounds <= 2 * INBOXES // STEPS, "it begins again and again"
        one_range.replica.submit(Asked(_send(b"inbox/099")))
        one_range.replica.turn()
        one_range.replica.turn()  # beside the proposal
        one_range.group.end(ProposalOutcome.APPLIED)
    ((listed, error),) = read.answers
    assert error is None
    assert len(listed) == INBOXES


def test_a_long_read_that_has_begun_waits_for_the_proposal_under_way(one_range: OneRange) -> None:
    reads = one_range.replica.reads
    read = Asked(ListInboxes(b"", None, INBOXES, by_key=True))
    one_range.replica.submit(read)
    one_range.replica.submit(Asked(_send(b"inbox/099")))
    one_range.replica.turn()
    assert one_range.group.proposed
    for _ in range(10):
        one_range.replica.turn()
    assert len(reads.long) == 1
    assert not read.answers
    one_range.end(ProposalOutcome.APPLIED)
    assert read.answers


def test_a_lock_that_two_proposals_have_held_up_goes_before_the_next_one(
    one_range: OneRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 1)
    replica, group = one_range.replica, one_range.group
    lock = Asked(Lock([b"locked"], [], os.urandom(16), 60.0, BEGAN))

    def evaluate() -> None:
        replica.submit(Asked(_send(b"a", b"b", b"c", b"d")))
        replica.turn()

    evaluate()
    assert replica.evaluator.batch, "it goes over several turns"
    replica.submit(lock)
    for _ in range(10):
        while not group.proposed:
            replica.turn()
        for _ in range(3):  # each takes the step of a turn
            replica.submit(Asked(Get(b"other")))
        group.end(ProposalOutcome.APPLIED)
        evaluate()
        if lock.answers:
            break
    assert lock.answers == [(None, None)]
