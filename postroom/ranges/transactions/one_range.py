"""Committing a transaction that lies in one range: one request, one write.

A commit is optimistic, as in FoundationDB (SIGMOD 2021, section 4.2) and the first design of
CockroachDB. The client has read at one timestamp without locking, and kept what it read as keys and
spans. At commit the leaseholder checks that none of that has a version after the read timestamp,
takes a fresh timestamp, and evaluates the writes at it. Values, outbox entries and the COMMIT
record leave in the same raw write set: a message costs no round of its own.

The COMMIT record makes retrying safe: committing again with the same transaction id finds it and
answers as the first time. It is kept for ``RECORD_SECONDS`` and a transaction may not commit later
than ``TRANSACTION_SECONDS_MAX`` after it began, so a record is never missed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from types import GeneratorType
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from postroom import limits
from postroom.errors import CommitUnknown, TransactionConflict, TransactionExpired, shorten
from postroom.kv import keys, versions
from postroom.kv.clock import from_seconds
from postroom.kv.engine import ValueReader
from postroom.limits import (
    LOCKS_AT_ONCE_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_SECONDS_MAX,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.commit_waits import CommitWaits, locked
from postroom.ranges.contract import Write, may_be_long
from postroom.ranges.evaluation import Evaluation, MustWait, check_size
from postroom.ranges.long_checks import CheckedReads
from postroom.ranges.ports import CHECKS_LONG, ChecksFirst, Registry
from postroom.ranges.requests import Committed, CommitTransaction
from postroom.ranges.transactions.intents import IntentTable
from postroom.ranges.transactions.records import decided_in, is_of_several
from postroom.ranges.transactions.requests import Prepare
from postroom.ranges.waiting import COMMITS_ARE_PAUSED

CLIENTS_REMEMBERED: Final = 10_000

RECORD_SECONDS: Final = TRANSACTION_SECONDS_MAX + 15.0

Span: TypeAlias = tuple[bytes, bytes | None]

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


FEW: Final = 256
"""A transaction of no more reads and writes is evaluated in one go."""


class Committer:
    """The evaluator of ``CommitTransaction``, with the evaluators of the writes in one.

    Looking for a COMMIT record that is not there costs as much as any other read, so it is done
    only where there may be one. The first half of a transaction's id names its client, the second
    half counts that client's transactions. A transaction that began after this leaseholder's
    memory, with a number above all that it remembers of its client, is certainly new.

    Args:
        registry: the evaluators.
        now: a function that returns about now, by the node's clock.
        waits: the commits that wait for locks of others.
        bounds: the bounds of the range.
        intents: the transactions over several ranges that are prepared here.

    Attributes:
        bounds: the bounds of the range.
        second_rounds: the runs of commits over several ranges, by the identities of the requests of
            their second rounds (:mod:`.coordinator`).
        decide: leaves the COMMIT record of such a run.
        latest: the number of the newest transaction of each client.
        remembers_from: a timestamp; those of later transactions are all here.
    """

    def __init__(
        self,
        registry: Registry,
        now: Callable[[], int],
        waits: CommitWaits,
        bounds: Bounds,
        intents: IntentTable,
    ) -> None:
        self._registry = registry
        self.bounds = bounds
        self._writes = registry.writes
        self._may_be_long: frozenset[type[Write]] = frozenset()
        self._now = now
        self._waits = waits
        self._held = waits.locks.held
        self._commits_in_line = waits.calls
        self._blocker = waits.blocker
        self._check_intents = intents.check_transaction
        self._intents = intents.by_transaction
        self.second_rounds: dict[int, Any] = {}
        self.decide: Callable[[Evaluation, Any, bytes, list[Any]], Committed]
        self.remembers_from = 0
        self.latest: dict[bytes, bytes] = {}

    def register(self, registry: Registry) -> None:
        """Register the commit."""
        registry.commands[CommitTransaction] = self

    def restart(self) -> None:
        """Begin with a new lease."""
        self._may_be_long = frozenset(
            kind for kind in self._writes if issubclass(kind, Write) and may_be_long(kind)
        )
        self.forget()

    @property
    def may_have_to_wait(self) -> bool:
        """Return whether a commit may have to wait.

        A key is locked, a commit waits in line, a transaction over several ranges is prepared, or
        commits are paused.
        """
        return bool(
            self._held or self._commits_in_line or self._intents or self.second_rounds
            or self._waits.is_paused
        )  # fmt: skip

    def forget(self) -> None:
        """Forget all transactions: none that began up to now counts as new."""
        self.latest.clear()
        self.remembers_from = self._now() + 1

    def _may_be_known(self, request: CommitTransaction[Any]) -> bool:
        client, number = request.transaction_id[:8], request.transaction_id[8:]
        latest = self.latest.get(client)
        if latest is not None and number <= latest:
            return True
        if latest is None and len(self.latest) >= CLIENTS_REMEMBERED:
            self.forget()
        self.latest[client] = number
        return request.began < self.remembers_from

    def __call__(
        self, ctx: Evaluation, request: CommitTransaction[Any], *, is_checked: bool = False
    ) -> Committed | Generator[object, None, Committed]:
        """Evaluate a commit, at once, or over several turns if there is much to do.

        Args:
            ctx: the proposal.
            request: the transaction.
            is_checked: nothing that it has read has changed.

        Raises:
            WrongRange: some of it concerns keys of other ranges.
            TransactionConflict, TransactionExpired, TransactionTooLarge: nothing happened.
            CommitUnknown: it is too late to tell.
            MustWait: another transaction has locked what it writes, or commits are paused.
            MeetsIntent: another transaction is prepared for what it has read or writes.
        """
        anchor = request.anchor if self.bounds.is_whole else self._checked_anchor(request)
        record = keys.transaction_key(anchor, request.transaction_id)
        if self._may_be_known(request):
            known = ctx.get(record)
            if known is not None:
                return from_record(known)
        if not (self.second_rounds and self._is_second_round(request)):
            check_age(ctx.timestamp, request, self._registry)
        if self.may_have_to_wait:
            self._check_turn(ctx, request)
            self._check_intents(request)
        ctx.transaction_id = request.transaction_id
        ctx.source = anchor
        if is_checked or self.is_long(request):
            return self._evaluate_in_parts(ctx, request, record, is_checked)
        check_reads(ctx, request)
        size_before = ctx.bytes
        evaluators = self._writes
        answers = []
        tells = False
        for write in request.writes:
            answer = evaluators[type(write)](ctx, write)
            if answer is not None:
                if type(answer) is GeneratorType:
                    answer = _to_the_end(answer)
                tells = tells or answer is not None
            answers.append(answer)
            if ctx.bytes - size_before > TRANSACTION_BYTES_MAX:
                check_size(ctx.bytes - size_before)
        return self._committed(ctx, request, record, answers if tells else [])

    def _checked_anchor(self, request: CommitTransaction[Any]) -> bytes:
        """Return the key of the record; the first one of the range if the request has no key.

        Raises:
            WrongRange: some of it concerns keys of other ranges.
        """
        bounds = self.bounds
        bounds.check(request)
        return request.anchor if bounds.contains(request.anchor) else bounds.start

    def _is_second_round(self, request: CommitTransaction[Any]) -> bool:
        """Return whether a commit is a second round; its age was checked before the first one.

        Raises:
            TransactionConflict: the run is over, and its callers were told.
        """
        run = self.second_rounds.get(id(request))
        if run is None:
            return False
        _check_goes_on(run)
        check_replaced(request, self._registry.replaced_at)
        return True

    def _check_turn(self, ctx: Evaluation, request: CommitTransaction[Any]) -> None:
        """Check that commits are not paused, and that nobody holds a lock on what it writes."""
        if self._waits.is_paused and id(request) not in self.second_rounds:
            raise MustWait(COMMITS_ARE_PAUSED)
        ctx.steps += len(self._held) // _LOCKS_A_STEP
        blocker = self._blocker(request)
        if blocker is None:
            return
        if id(request) in self.second_rounds:
            raise locked(blocker)  # the holder may wait for what is prepared in other ranges
        raise MustWait(blocker)

    def is_long(self, request: CommitTransaction[Any]) -> bool:
        """Return whether a commit may take more than a turn."""
        if request.spans or len(request.reads) + len(request.writes) > FEW:
            return True
        long_kinds = self._may_be_long
        if long_kinds.isdisjoint(map(type, request.writes)):  # usually
            return False
        for write in request.writes:  # noqa: SIM110 - a generator takes longer
            if type(write) in long_kinds and write.is_long():
                return True
        return False

    def _evaluate_in_parts(
        self, ctx: Evaluation, request: CommitTransaction[Any], record: bytes, is_checked: bool
    ) -> Generator[object, None, Committed]:
        """Evaluate a commit, and yield whenever the turn is used up."""
        if not is_checked:
            yield from check_reads_in_parts(ctx, request)
        size_before = ctx.bytes
        evaluators = self._writes
        answers = []
        for write in request.writes:
            answer = evaluators[type(write)](ctx, write)
            if type(answer) is GeneratorType:
                answer = yield from answer
            answers.append(answer)
            check_size(ctx.bytes - size_before)
            if ctx.is_used_up():
                yield None
        tells = any(answer is not None for answer in answers)
        return self._committed(ctx, request, record, answers if tells else [])

    def _committed(
        self,
        ctx: Evaluation,
        request: CommitTransaction[Any],
        record: bytes,
        answers: list[Any],
    ) -> Committed:
        """Leave the COMMIT record, if anything was written, and return the answer."""
        if self.second_rounds:
            run = self.second_rounds.get(id(request))
            if run is not None:
                _check_goes_on(run)  # again: the evaluation may have taken many turns
                return self.decide(ctx, run, record, answers)
        writes = request.writes
        if not writes or (writes[0].only_checks and _only_check(writes)):
            return Committed(ctx.timestamp, [])  # it only reads: nothing to remember
        ctx.writes[record] = ctx.stamp + _encode(answers) if answers else ctx.stamp
        ctx.garbage.append(record)
        return Committed(ctx.timestamp, answers)


def _check_goes_on(run: Any) -> None:
    """Check that the run of a second round is not over: its callers were told, and its parts."""
    if run.is_over:
        raise TransactionConflict("the run of the commit is over; nothing was changed")


def _only_check(writes: list[Write]) -> bool:
    return all(write.only_checks for write in writes)


def _to_the_end(evaluating: Generator[None, None, Any]) -> Any:
    """Return the result of an evaluation that is short, though it need not be."""
    while True:
        try:
            next(evaluating)
        except StopIteration as stop:
            return stop.value


def checks_first(evaluators: Mapping[type, Callable[..., Any]]) -> ChecksFirst:
    """Return the check of what transactions have read, for those that may take long.

    Args:
        evaluators: the evaluators of the requests that may have such a check.
    """

    def evaluate(ctx: Evaluation, request: Any) -> Any:
        return evaluators[type(request)](ctx, request, is_checked=True)

    return ChecksFirst(check_reads_in_parts, evaluate, lambda key: _conflict([key]))


def from_record(record: bytes) -> Committed:
    """Return the answer that a COMMIT record remembers."""
    if is_of_several(record):
        return Committed(int.from_bytes(record[:8], "big"), decided_in(record).answers)
    answers: list[Any] = _decode(record[8:]) if len(record) > 8 else []
    return Committed(int.from_bytes(record[:8], "big"), answers)


def check_replaced(request: CommitTransaction[Any] | Prepare[Any], replaced_at: int) -> None:
    """Refuse a transaction that has read before everything stored was replaced.

    Raises:
        TransactionConflict: it has.
    """
    if 0 < request.read_timestamp < replaced_at:
        raise TransactionConflict(
            "the store was restored from an export after this transaction had read; nothing was "
            "changed: try again (run() does)"
        )


def check_age(now: int, request: CommitTransaction[Any], registry: Registry) -> None:
    """Refuse a transaction that has been open for too long.

    Raises:
        TransactionExpired: it has.
        CommitUnknown: it may have committed, so long ago that nobody knows, or before a restore.
        TransactionConflict: it has read what was replaced since.
    """
    age = now - request.began
    seconds = min(request.seconds_max, TRANSACTION_SECONDS_MAX)
    if age <= from_seconds(seconds):
        if request.began <= registry.image_at:
            raise CommitUnknown(
                "the transaction began before the backup that the store was restored from, and may "
                "be in it: read what it would have written to find out"
            )
        check_replaced(request, registry.replaced_at)
        return
    if age > from_seconds(RECORD_SECONDS):
        raise CommitUnknown(
            "the transaction began so long ago that a COMMIT record may have been collected: "
            "read what it would have written to find out"
        )
    raise expired(seconds)


def expired(seconds: float) -> TransactionExpired:
    """Return the error for a transaction that was open for more than its ``seconds``."""
    most = TRANSACTION_SECONDS_MAX
    longer = f"give begin() a longer timeout than that ({most:g} s at most), or "
    return TransactionExpired(
        f"the transaction was open for more than {seconds:g} s; nothing was changed: begin a "
        f"new one; if the work takes so long, {longer if seconds < most else ''}do it in shorter "
        "transactions, or outside of them"
    )


def advice_on_time(seconds: float) -> str:
    """Return advice for a transaction that may stay open for ``seconds``, and did not end."""
    if seconds < TRANSACTION_SECONDS_MAX:
        return (
            f"begin a new one, and give begin() a longer timeout ({TRANSACTION_SECONDS_MAX:g} s "
            "at most)"
        )
    return (
        "this is the longest timeout: do the work in shorter transactions, or before you begin one"
    )


class ReadsChecker(ValueReader, Protocol):
    """The reader of a check, which counts its steps, and knows the last commit before it."""

    steps: int
    last_commit: int


def check_reads(ctx: ReadsChecker, request: CommitTransaction[Any] | Prepare[Any]) -> None:
    """Refuse a transaction if a key that it has read has changed since.

    Raises:
        TransactionConflict: it has.
    """
    since = request.read_timestamp
    if since >= ctx.last_commit or not since:
        return
    stamp, head_key = since.to_bytes(8, "big"), keys.head_key
    for key in request.reads:
        head = ctx.get(head_key(key))
        if head is not None and head[1:9] > stamp:
            raise _conflict(_changed(ctx, key, request.reads, stamp))
    ctx.steps += len(request.reads)


def check_reads_in_parts(
    ctx: Evaluation | CheckedReads, request: CommitTransaction[Any] | Prepare[Any]
) -> Generator[object, None, None]:
    """Check as ``check_reads`` does, spans as well, over as many turns as it takes."""
    since = request.read_timestamp
    if since >= ctx.last_commit or not since:
        return
    if len(request.reads) + len(request.spans) > limits.TURN_STEPS_MAX // 2:
        yield CHECKS_LONG
    stamp = since.to_bytes(8, "big")
    for key in request.reads:
        ctx.steps += 1
        ctx.sees_key(key)
        head = ctx.get(keys.head_key(key))
        if head is not None and head[1:9] > stamp:
            raise _conflict(_changed(ctx, key, request.reads, stamp))
        if ctx.is_used_up():
            yield CHECKS_LONG
    yield from _check_spans(ctx, request, stamp)


def _check_spans(
    ctx: Evaluation | CheckedReads,
    request: CommitTransaction[Any] | Prepare[Any],
    stamp: bytes,
) -> Generator[object, None, None]:
    for span in _merged(ctx, request.spans):
        if span is None:
            yield CHECKS_LONG
            continue
        start, end = span
        ctx.steps += 1
        ctx.sees_span(start, end)
        for changed in versions.changed_since(ctx, start, end, stamp):
            ctx.steps += 1
            if changed is not None:
                raise _conflict([changed], (span,))
            if ctx.is_used_up():
                yield CHECKS_LONG
        if ctx.is_used_up():
            yield CHECKS_LONG


def _merged(ctx: Evaluation | CheckedReads, spans: list[Span]) -> Iterator[Span | None]:
    """Yield the same keys in fewer spans, in order: the pages of one scan follow each other.

    A request has room for more than a million spans, so they are sorted in runs. ``None``: the turn
    is used up.
    """
    runs: list[list[Span]] = []
    for first in range(0, len(spans), limits.TURN_STEPS_MAX):
        runs.append(sorted(spans[first : first + limits.TURN_STEPS_MAX], key=_START))
        ctx.steps += len(runs[-1]) // _SPANS_A_STEP
        if ctx.is_used_up():
            yield None
    merged: Span | None = None
    for number, (start, end) in enumerate(heapq.merge(*runs, key=_START)):
        if not number % _SPANS_A_STEP:
            ctx.steps += 1
            if ctx.is_used_up():
                yield None
        if merged is None:
            merged = start, end
        elif merged[1] is not None and start > merged[1]:
            yield merged
            merged = start, end
        elif merged[1] is not None:
            merged = merged[0], None if end is None else max(merged[1], end)
    if merged is not None:
        yield merged


_START: Final = itemgetter(0)
_SPANS_A_STEP: Final = 4
_LOCKS_A_STEP: Final = 64


def _changed(ctx: ValueReader, first: bytes, reads: list[bytes], stamp: bytes) -> list[bytes]:
    """Return ``first``, and what else of ``reads`` has changed, as far as a turn may look."""
    found = [first]
    for key in islice(reads, limits.TURN_STEPS_MAX):
        head = ctx.get(keys.head_key(key))
        if head is not None and head[1:9] > stamp:
            found.append(key)
            if len(found) > LOCKS_AT_ONCE_MAX:
                break
    return found


def _conflict(changed: list[bytes], spans: tuple[Span, ...] = ()) -> TransactionConflict:
    return TransactionConflict(
        f"another transaction changed {shorten(changed[0])} after this one had read it; nothing "
        "was changed: try again (run() does)",
        tuple(dict.fromkeys(changed))[:LOCKS_AT_ONCE_MAX],
        spans,
    )
