"""Commits whose reads take long to check: that is done beside the proposals, in their turns.

A transaction that has read a hundred thousand spans need not hold up those that write elsewhere.
Its spans are looked up in the applied state, a part with each proposal. The writes of those
proposals are compared with what was looked up already. If nothing has changed at the end, the
commit is the first one in the next proposal. If something has, that is a conflict, since it is
committed later than what the transaction has read.

::

    evaluated ── its check takes too long ──▶ a part of each turn ──▶ evaluated, unchecked
                                                    ▲                 first in a proposal
                        what proposals write ───────┴───▶ conflict

Each principal has one such check under way, and principals take turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from postroom import limits
from postroom.errors import TransactionTooLarge
from postroom.kv import keys
from postroom.kv.engine import Reader, WriteSet
from postroom.ranges.admission import FairQueue
from postroom.ranges.calls import Call
from postroom.ranges.evaluation import Evaluation, yields_at
from postroom.ranges.ports import ChecksFirst


class CheckedReads:
    """The view of one check: what it reads, and has seen.

    Attributes:
        steps: the number of steps it has taken in all.
        changed: the first key of those seen that was written since.
    """

    def __init__(self, reader: Reader, last_commit: int) -> None:
        self.get, self.iterate = reader.get, reader.iterate
        self.last_commit = last_commit
        self.steps = 0
        self.until = 0
        self.changed: bytes | None = None
        self._keys: set[bytes] = set()
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []

    def is_used_up(self) -> bool:
        """Return whether the check has had its share of the turn."""
        return self.steps >= self.until

    def sees_key(self, key: bytes) -> None:
        """Note that the check looks whether a key has changed."""
        self._keys.add(key)

    def sees_span(self, start: bytes, end: bytes | None) -> None:
        """Note that the check looks whether a span has changed. Spans come in order, disjoint."""
        self._starts.append(start)
        self._ends.append(end)

    def hear(self, key: bytes) -> None:
        """Hear that a key is written."""
        if self.changed is None and (key in self._keys or self._is_in_span(key)):
            self.changed = key

    def _is_in_span(self, key: bytes) -> bool:
        index = bisect_right(self._starts, key) - 1
        if index < 0:
            return False
        end = self._ends[index]
        return end is None or key < end


class LongCheck:
    """The check of one call.

    Attributes:
        call: the call of the commit.
        error: the error when it is done; ``None``: nothing has changed.
    """

    __slots__ = ("_checking", "_checks", "_is_over", "_parts", "call", "error")

    def __init__(self, call: Call, checks: ChecksFirst, reader: Reader, last_commit: int) -> None:
        self.call = call
        self.error: Exception | None = None
        self._checks = checks
        self._is_over = False
        self._checking = CheckedReads(reader, last_commit)
        self._parts = checks.parts(self._checking, call.request)

    def go_on(self) -> int:
        """Check as much as a request has room for in a turn; return how many steps that took."""
        checking, before = self._checking, self._checking.steps
        checking.until = before + yields_at(0)
        try:
            next(self._parts)
        except StopIteration:
            self._is_over = True
        except Exception as error:
            self.error = error
        return checking.steps - before

    def is_done(self) -> bool:
        """Return whether it need not go on."""
        checking = self._checking
        if self.error is None and checking.changed is not None:
            self.error = self._checks.conflict(checking.changed)
        elif self.error is None and checking.steps > limits.TRANSACTION_STEPS_MAX:
            self.error = too_many_steps()
        return bool(self.error or self.call.cancelled) or self._is_over

    def evaluate(self, ctx: Evaluation) -> Any:
        """Evaluate the request: nothing that it has read has changed."""
        if self.error is not None:
            raise self.error
        return self._checks.evaluate(ctx, self.call.request)

    def hear(self, key: bytes) -> None:
        """Hear that a key is written."""
        self._checking.hear(key)


class LongChecks:
    """All of them.

    Args:
        commit_checks: the checks of commits.
        reader: the applied state.

    Attributes:
        waiting: the calls that wait, by principal; ``current``: the checks that were begun. Only to
            look at.
    """

    def __init__(self, commit_checks: ChecksFirst, reader: Reader) -> None:
        self._commit_checks = commit_checks
        self._reader = reader
        self.waiting: dict[str, FairQueue] = {}
        self.current: dict[str, LongCheck] = {}

    def __iter__(self) -> Iterator[Call]:
        for check in self.current.values():
            yield check.call
        for queue in self.waiting.values():
            yield from queue

    def add(self, call: Call) -> None:
        """Add a call whose check takes long."""
        self.waiting.setdefault(call.principal, FairQueue()).append(call)

    def go_on(self, last_commit: int) -> tuple[LongCheck | None, int]:
        """Check a part of the request whose turn it is.

        Args:
            last_commit: the timestamp of the last commit that is applied.

        Returns:
            A check that is done, and how many steps were taken.
        """
        principal = next(iter(self.waiting))
        queue = self.waiting.pop(principal)
        check = self.current.get(principal)
        if check is None:
            call = queue.popleft()
            check = LongCheck(call, self._commit_checks, self._reader, last_commit)
            self.current[principal] = check
        steps = 0 if check.is_done() else check.go_on()
        is_done = check.is_done()
        if is_done:
            del self.current[principal]
        if queue or not is_done:
            self.waiting[principal] = queue
        return (check if is_done else None), steps

    def hear(self, written: WriteSet) -> None:
        """Hear that a proposal writes this."""
        for raw, value in written.items():
            if value is not None and keys.is_head(raw):
                key = keys.user_key(raw)
                for check in self.current.values():
                    check.hear(key)

    def clear(self) -> None:
        """Give all of them up."""
        self.waiting.clear()
        self.current.clear()


def too_many_steps() -> TransactionTooLarge:
    """Return the error of a transaction that takes too long."""
    return TransactionTooLarge(
        "checking what the transaction read, and doing what it writes, takes more than "
        f"{limits.TRANSACTION_STEPS_MAX} steps; nothing was changed: do the work in smaller "
        "transactions, or read at a timestamp outside of it (db.snapshot())"
    )
