"""Requests that wait for the lock of a span, beside watches of the same span."""

from __future__ import annotations

from typing import Any, Final

from postroom.kv.clock import from_milliseconds
from postroom.ranges.requests import (
    CommitTransaction,
    GetForUpdate,
    Lock,
    Put,
    ReleaseLocks,
    ScanChanges,
)
from tests.messaging.one_range import EPOCH_MILLISECONDS, OneRange, node_of
from tests.sim.waiting_rules import check_lines

BEGAN: Final = from_milliseconds(EPOCH_MILLISECONDS)
HOLDER, NEXT = b"h" * 16, b"n" * 16
START, KEY, END = b"k", b"k1", b"l"


class Watched:
    """One range with a feed, in which a transaction has locked a span."""

    def __init__(self) -> None:
        self.range = one_range = OneRange()
        replica = one_range.replica
        self.node = node_of(replica)
        self.ask = one_range.ask
        assert self.ask(Lock([], [(START, END)], HOLDER, 60.0, BEGAN)).answers

    def watch(self) -> list[tuple[Any, BaseException | None]]:
        return self.ask(ScanChanges(START, END, self.range.replica.last_commit)).answers

    def wait_for_the_lock(self) -> list[tuple[Any, BaseException | None]]:
        return self.ask(GetForUpdate(KEY, 0, NEXT, 60.0)).answers


def test_a_watch_does_not_stand_before_those_that_wait_for_the_lock_of_its_span() -> None:
    watched = Watched()
    watched.watch()
    answers = watched.wait_for_the_lock()
    check_lines(watched.node)
    assert not answers
    watched.ask(ReleaseLocks(HOLDER))
    assert answers[0][0].value is None


def test_a_change_is_told_to_watches_and_not_to_those_that_wait_for_the_lock() -> None:
    watched = Watched()
    waits, watches = watched.wait_for_the_lock(), watched.watch()
    commit = CommitTransaction(HOLDER, BEGAN, 60.0, 0, KEY, [], [], [Put(KEY, b"new")])
    assert watched.ask(commit).answers[0][1] is None
    assert [change.value for change in watches[0][0].changes] == [b"new"]
    assert waits[0][0].value == b"new"


def test_a_lock_that_is_waited_for_is_no_watch() -> None:
    watched = Watched()
    watched.wait_for_the_lock()
    assert not len(watched.range.replica.waiting.watched)
    check_lines(watched.node)
