"""Commits that wait for locks, and whose clients go away."""

from __future__ import annotations

from typing import Any, Final

import pytest

from postroom import limits
from postroom.errors import TransactionConflict
from postroom.kv.clock import from_milliseconds
from postroom.limits import LOCK_WAIT_SECONDS_MAX
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import (
    CommitTransaction,
    DeleteRange,
    Get,
    GetForUpdate,
    Lock,
    Put,
    ReleaseLocks,
)
from postroom.ranges.waiting import Waiting
from tests.messaging.one_range import EPOCH_MILLISECONDS, Asked, OneRange, node_of
from tests.sim.waiting_rules import check_lines

BEGAN: Final = from_milliseconds(EPOCH_MILLISECONDS)
HOLDER, NEXT = b"h" * 16, b"n" * 16


def _lock(transaction_id: bytes, timestamp: int = BEGAN) -> GetForUpdate:
    return GetForUpdate(b"k", timestamp, transaction_id, 60.0)


def _commit(write: Any, transaction_id: bytes = b"c" * 16) -> CommitTransaction[Any]:
    return CommitTransaction(transaction_id, BEGAN, 60.0, 0, b"k", [], [], [write])


def test_a_wounded_request_is_answered_once_if_it_waits_for_the_lease_too() -> None:
    """Both requests that close the circle are taken again together, when the lease is there."""
    one_range = OneRange()
    replica, view = one_range.replica, one_range.replica.reads._view

    def old(key: bytes) -> Lock:
        return Lock([key], [], HOLDER, 60.0, BEGAN)

    def young(key: bytes) -> Lock:
        return Lock([key], [], NEXT, 60.0, BEGAN + 1)

    one_range.ask(old(b"a"))
    one_range.ask(young(b"b"))
    wounded = one_range.ask(young(b"a"))
    view.steps = limits.TURN_STEPS_MAX
    replica.submit(first := Asked(old(b"b")))
    replica.wake([b"a"])
    view.steps = 0
    replica.serving.serve_again()
    one_range.settle()
    assert first.answers == [(None, None)]
    one_range.ask(ReleaseLocks(HOLDER))
    ((_, error),) = wounded.answers
    assert isinstance(error, TransactionConflict)
    assert not one_range.replica.sizes()["lock waits"]


def test_a_commit_that_is_free_when_it_changes_lines_is_answered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one in the line that it leaves may free the key for which it waits then."""
    one_range = OneRange()
    commit_waits = one_range.replica.commit_waits
    park = commit_waits._waiting.park

    def park_and_free(call: Asked, token: object) -> None:
        park(call, token)
        monkeypatch.undo()
        one_range.replica.release_locks(HOLDER)

    one_range.ask(_commit(Put(b"k", b"newer"), HOLDER))
    one_range.ask(Lock([b"k"], [], HOLDER, 60.0, BEGAN))
    monkeypatch.setattr(Waiting, "park", lambda _, *told: park_and_free(*told))
    commit = one_range.ask(
        CommitTransaction(b"c" * 16, BEGAN, 60.0, BEGAN, b"k", [b"k"], [], [Put(b"k", b"late")])
    )
    ((_, error),) = commit.answers
    assert isinstance(error, TransactionConflict)


@pytest.mark.parametrize("write", [Put(b"k", b"new"), DeleteRange(b"k", b"k\0", 0)])
def test_a_withdrawn_commit_leaves_the_line_with_its_evaluation(write: Any) -> None:
    """The lock is free, so the commit is to be evaluated; before that, its client goes."""
    one_range = OneRange()
    replica, node = (
        one_range.replica,
        node_of(one_range.replica),
    )
    one_range.ask(_lock(HOLDER))
    commit = one_range.ask(_commit(write))
    behind = one_range.ask(_lock(NEXT))
    replica.submit(Asked(ReleaseLocks(HOLDER)))
    replica.cancel(commit)
    check_lines(node)
    one_range.settle()
    assert isinstance(commit.answers[0][1], TransactionConflict)
    assert behind.answers[0][0].value is None
    assert one_range.ask(Get(b"k")).answers[0][0].value is None
    assert not replica.waiting_for
    assert not len(replica.commit_waits)


def test_a_reader_in_line_whose_key_went_to_another_range_waits_for_no_lock() -> None:
    """The lock is free when the bounds change, so the reader is looked at again, and refused."""
    one_range = OneRange()
    one_range.ask(_lock(HOLDER))
    behind = one_range.ask(_lock(NEXT))
    one_range.replica.bounds.take(RangeDescriptor(one_range.replica.range_id, b"", b"a", 2))
    one_range.replica.release_locks(HOLDER)
    one_range.settle()
    assert isinstance(behind.answers[0][1], WrongRange)
    assert not one_range.replica.sizes()["lock waits"]


def test_a_commit_that_has_to_wait_when_the_lease_has_ended_is_sent_elsewhere() -> None:
    """Its proposal ends after the lease; nothing of it stays in memory."""
    one_range = OneRange()
    replica, group = one_range.replica, one_range.group
    one_range.ask(_lock(HOLDER))
    group.holds = True
    under_way = one_range.ask(_commit(Put(b"a", b"new"), b"a" * 16))
    replica.submit(first := Asked(_commit(Put(b"b", b"new"), b"b" * 16)))
    waiting = one_range.ask(_commit(Put(b"k", b"new")))
    one_range.end(ProposalOutcome.APPLIED)
    group.is_leader = False
    replica.on_leadership(False, 3)
    replica.stop_serving()
    one_range.end(ProposalOutcome.APPLIED)
    assert under_way.answers[0][1] is first.answers[0][1] is None
    assert [type(error) for _, error in waiting.answers] == [NotLeaseholder]
    assert not len(replica.commit_waits)
    assert not replica.commit_waits.calls


def test_a_newcomer_does_not_lock_before_a_commit_that_has_waited() -> None:
    one_range = OneRange()
    one_range.ask(_lock(HOLDER))
    commit = one_range.ask(_commit(Put(b"k", b"new")))
    one_range.replica.submit(Asked(ReleaseLocks(HOLDER)))
    newcomer = one_range.ask(_lock(NEXT, 0))
    one_range.settle()
    assert commit.answers[0][1] is None
    assert newcomer.answers[0][0].value == b"new"


def test_a_newcomer_does_not_write_before_one_that_has_waited_for_the_lock() -> None:
    one_range = OneRange()
    one_range.ask(_lock(HOLDER))
    first = one_range.ask(_commit(Put(b"k", b"first")))
    waiting = one_range.ask(_lock(NEXT, 0))
    one_range.replica.submit(Asked(ReleaseLocks(HOLDER)))
    newcomer = one_range.ask(_commit(Put(b"k", b"newcomer"), b"d" * 16))
    one_range.settle()
    assert first.answers[0][1] is None
    assert waiting.answers[0][0].value == b"first"
    assert not newcomer.answers
    one_range.ask(ReleaseLocks(NEXT))
    one_range.settle()
    assert newcomer.answers[0][1] is None


def test_the_rules_see_a_withdrawn_commit_that_is_not_evaluated_any_more() -> None:
    one_range = OneRange()
    replica, node = (
        one_range.replica,
        node_of(one_range.replica),
    )
    one_range.ask(_lock(HOLDER))
    commit = one_range.ask(_commit(Put(b"k", b"new")))
    replica.submit(Asked(ReleaseLocks(HOLDER)))
    replica.cancel(commit)
    replica.clients.clear()
    with pytest.raises(AssertionError, match="is waited for by nobody"):
        check_lines(node)


@pytest.mark.parametrize("withdrawn", [0, 1])
def test_the_other_copy_of_a_commit_sent_twice_goes_on(withdrawn: int) -> None:
    one_range = OneRange()
    replica = one_range.replica
    one_range.ask(_lock(HOLDER))
    commits = [one_range.ask(_commit(Put(b"k", b"new"))) for _ in range(2)]
    replica.cancel(commits[withdrawn])
    one_range.ask(ReleaseLocks(HOLDER))
    assert commits[1 - withdrawn].answers[0][1] is None
    assert not replica.waiting_for
    assert not len(replica.commit_waits)
    assert one_range.ask(Get(b"k")).answers[0][0].value == b"new"


def test_both_copies_of_a_commit_sent_twice_end_with_their_time() -> None:
    one_range = OneRange()
    one_range.ask(_lock(HOLDER))
    commits = [one_range.ask(_commit(Put(b"k", b"new"))) for _ in range(2)]
    one_range.replica.cancel(commits[0])
    one_range.pass_time(LOCK_WAIT_SECONDS_MAX + 0.1)
    assert isinstance(commits[1].answers[0][1], TransactionConflict)


def _change(one_range: OneRange, number: int) -> CommitTransaction[Any]:
    """Return a transaction that has read the key just now, and writes it."""
    at = one_range.ask(Get(b"k")).answers[0][0].timestamp
    return CommitTransaction(
        b"c" * 8 + number.to_bytes(8, "big"), BEGAN, 60.0, at, b"k", [b"k"], [], [Put(b"k", b"new")]
    )


def test_a_commit_is_told_that_it_has_lost_wherever_it_stands_in_line() -> None:
    """It waited until it was the first in line, and then from the end for the lock."""
    one_range = OneRange()
    one_range.ask(_lock(HOLDER))
    before = one_range.ask(GetForUpdate(b"k", 0, NEXT, 60.0))
    commits = [one_range.ask(_change(one_range, number)) for number in range(3)]
    blind = one_range.ask(_commit(Put(b"k", b"blind")))
    write = CommitTransaction(HOLDER, BEGAN, 60.0, 0, b"k", [], [], [Put(b"k", b"first")])
    assert one_range.ask(write).answers[0][1] is None
    for commit in commits:
        assert isinstance(commit.answers[0][1], TransactionConflict)
        assert commit.answers[0][1].keys == (b"k",)
    assert before.answers[0][0].value == b"first"
    assert not blind.answers
    one_range.ask(ReleaseLocks(NEXT))
    assert blind.answers[0][1] is None
    assert not one_range.replica.waiting_for


def test_a_commit_that_has_lost_already_does_not_get_in_line() -> None:
    one_range = OneRange()
    commit = _change(one_range, 1)
    one_range.ask(_commit(Put(b"k", b"meanwhile")))
    one_range.ask(GetForUpdate(b"k", 0, HOLDER, 60.0))
    asked = one_range.ask(commit)
    assert isinstance(asked.answers[0][1], TransactionConflict)
    assert not one_range.replica.waiting_for


@pytest.mark.parametrize("ends", ["the holder rolls back", "it is withdrawn", "a new lease"])
def test_a_reader_that_has_stopped_waiting_leaves_no_memory(ends: str) -> None:
    one_range = OneRange()
    one_range.ask(_lock(HOLDER))
    commit = one_range.ask(_change(one_range, 1))
    waits = one_range.replica.commit_waits
    assert waits._readers
    match ends:
        case "the holder rolls back":
            one_range.ask(ReleaseLocks(HOLDER))
            assert commit.answers[0][1] is None
        case "it is withdrawn":
            one_range.replica.cancel(commit)
        case "a new lease":
            one_range.lead()
    for left in (waits._readers, waits._has_read, waits.calls, waits):
        assert not len(left)


def test_a_paused_commit_costs_no_turns_until_commits_go_on() -> None:
    one_range = OneRange()
    memory = one_range.replica.memory
    memory.pause_commits(True)
    replica = one_range.replica
    replica.submit(commit := Asked(_commit(Put(b"k", b"new"))))
    replica.submit(withdrawn := Asked(_commit(Put(b"k", b"old"), b"w" * 16)))
    one_range.settle()
    assert not commit.answers
    replica.cancel(withdrawn)
    check_lines(node_of(replica))
    memory.pause_commits(False)
    one_range.settle()
    ((_, error),) = commit.answers
    assert error is None
    assert one_range.ask(Get(b"k")).answers[0][0].value == b"new"
    assert not replica.waiting_for


def test_a_pause_of_commits_ends_with_the_lease() -> None:
    one_range = OneRange()
    one_range.replica.memory.pause_commits(True)
    one_range.replica.memory.begin_anew()
    commit = one_range.ask(_commit(Put(b"k", b"new")))
    ((_, error),) = commit.answers
    assert error is None
