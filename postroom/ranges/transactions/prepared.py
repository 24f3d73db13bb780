"""The evaluators of a participant: it prepares its part of a transaction, and ends that.

::

    Prepare ─▶ of this ballot already? ─▶ the same answer
               of a later one?         ─▶ refused
               meets intents of others ─▶ waits
               what it has read has changed, a condition fails ─▶ refused
               else ─▶ prepared record, at a fresh timestamp

    Resolve ─▶ committed at T ─▶ the clock passes T ─▶ its writes, at T; the record goes
               dead ───────────▶ the record goes

A write is evaluated twice: in a trial, of which only the answer is kept, and when the transaction
has committed. Both come to the same, because nobody changes in between what it has read or writes.

Records without versions, such as those of queues, change at the time of the second evaluation
(``Registry.committed``). Their order is that of their range, in which another transaction may have
committed at the same timestamp.

A record belongs to a commit if the ballots are the same, and its timestamp is not above that of the
commit. A Prepare that arrives once more, after its transaction was resolved, makes a record that
belongs to nothing. Like any other that is left, it is found dead when the anchor is asked.

Invariant: a record goes only when the clock, and the end of the lease, have passed the commit. The
proposal that writes at T also extends a lease that ends before T (:mod:`postroom.ranges.proposer`).
Nothing is therefore read or written at T or below afterwards, under this lease or the next one.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from types import GeneratorType
from typing import Any, Final

import msgspec

from postroom.counted import counted
from postroom.errors import (
    Error,
    Invalid,
    TransactionConflict,
    TransactionTooLarge,
    Unavailable,
    shorten,
)
from postroom.kv.clock import HybridLogicalClock
from postroom.limits import (
    PREPARED_BYTES_MAX,
    PREPARED_KEPT_BYTES_MAX,
    PREPARED_MAX,
    PREPARED_RECORD_BYTES_MAX,
    PREPARED_SPANS_MAX,
)
from postroom.ranges.bounds import Bounds, WrongRange
from postroom.ranges.commit_waits import locked
from postroom.ranges.contract import KeySet, Write
from postroom.ranges.evaluation import Evaluation, TrialEvaluation, check_size
from postroom.ranges.locks import LockTable
from postroom.ranges.ports import Registry
from postroom.ranges.transactions.intents import (
    Intent,
    IntentTable,
    PreparedRecord,
    decode_record,
    encode_record,
)
from postroom.ranges.transactions.one_range import (
    FEW,
    check_reads,
    check_reads_in_parts,
    check_replaced,
)
from postroom.ranges.transactions.parts import too_large_part
from postroom.ranges.transactions.requests import Prepare, Prepared, Resolve

_log: Final = logging.getLogger(__name__)
_encode: Final = msgspec.msgpack.Encoder().encode
_RETRY_SECONDS: Final = 0.1


class Participation:
    """The evaluators of ``Prepare`` and ``Resolve``; see the module.

    Args:
        registry: the evaluators of writes.
        intents: the intents of the range.
        locks: the locks of transactions.
        bounds: the bounds of the range.
        clock: the clock.
        release: a function that frees what a transaction has locked or claimed here.
    """

    def __init__(
        self,
        registry: Registry,
        intents: IntentTable,
        locks: LockTable,
        bounds: Bounds,
        clock: HybridLogicalClock,
        release: Callable[[bytes], None],
    ) -> None:
        self._registry = registry
        self._writes = registry.writes
        self._intents = intents
        self._locks = locks
        self._bounds = bounds
        self._clock = clock
        self._release = release

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.commands[Prepare] = self.prepare
        registry.commands[Resolve] = self.resolve
        registry.sizes["intents"] = self._intents.__len__
        registry.sizes["calls that wait for intents"] = self._intents.waiting

    # --- preparing

    def prepare(
        self, ctx: Evaluation, request: Prepare[Any], *, is_checked: bool = False
    ) -> Prepared | Generator[object, None, Prepared]:
        """Evaluate ``Prepare``.

        Args:
            ctx: the proposal.
            request: the part of a transaction.
            is_checked: nothing that it has read has changed.

        Raises:
            WrongRange: some of it concerns keys of other ranges, or will do so in a moment.
            MeetsIntent: another transaction is prepared for what it has read or writes.
            TransactionConflict: what it has read has changed, or is locked; or a later ballot of it
                is prepared.
            TransactionTooLarge, Unavailable: there is no room for it.
        """
        self._bounds.check(request)
        known = self._intents.by_transaction.get(request.transaction_id)
        if known is not None:
            if known.ballot == request.ballot:
                return Prepared(known.timestamp, known.answers)
            if known.ballot > request.ballot:
                raise _outdated()
        if self._intents.closed and self._intents.closed.contain(request.concerns()):
            raise WrongRange(self._bounds.descriptor)
        _check_kinds(request)
        self._check_room(request, known)
        self._intents.check_transaction(request)
        self._check_locks(request)
        check_replaced(request, self._registry.replaced_at)
        preparing = self._prepare_in_parts(ctx, request, is_checked)
        if is_checked or self._is_long(request):
            return preparing
        check_reads(ctx, request)
        return _to_the_end(self._prepare_in_parts(ctx, request, True))

    def _is_long(self, request: Prepare[Any]) -> bool:
        if request.spans or len(request.reads) + len(request.writes) > FEW:
            return True
        return any(write.is_long() for write in request.writes)

    def _prepare_in_parts(
        self, ctx: Evaluation, request: Prepare[Any], is_checked: bool
    ) -> Generator[object, None, Prepared]:
        if not is_checked:
            yield from check_reads_in_parts(ctx, request)
        answers = yield from self._try_writes(ctx, request)
        record = _record(ctx.timestamp, request, answers)
        packed = encode_record(record)
        self._check_size(len(packed))
        known = self._intents.by_transaction.get(request.transaction_id)
        if known is not None:
            self._intents.remove(known)
            ctx.after.append(partial(self._intents.gone, known))
        ctx.writes[self._intents.record_key(request.transaction_id)] = packed
        ctx.grow(len(packed))
        intent = self._intents.add(request.transaction_id, record, len(packed))
        if len(packed) <= PREPARED_KEPT_BYTES_MAX:
            intent.writes = request.writes
        ctx.after.append(partial(setattr, intent, "is_applied", True))
        return Prepared(record.timestamp, answers)

    def _try_writes(
        self, ctx: Evaluation, request: Prepare[Any]
    ) -> Generator[object, None, list[Any]]:
        """Evaluate the writes without any effect; return their answers."""
        trial = TrialEvaluation(ctx)
        trial.transaction_id, trial.source = request.transaction_id, request.anchor
        evaluations = [partial(self._writes[type(each)], trial, each) for each in request.writes]
        answers = yield from self._carry_out(ctx, trial, evaluations)
        ctx.steps = trial.steps
        return answers

    def _carry_out(
        self, ctx: Evaluation, on: Evaluation, evaluations: Iterable[Callable[[], Any]]
    ) -> Generator[object, None, list[Any]]:
        """Evaluate writes on a proposal, ``ctx`` or a trial of it, over as many turns as needed."""
        answers, size_before = [], on.bytes
        for evaluate in evaluations:
            on.steps, on.yields_at = ctx.steps, ctx.yields_at
            answer = evaluate()
            while type(answer) is GeneratorType:
                try:
                    next(answer)
                except StopIteration as stop:
                    answer = stop.value
                    break
                ctx.steps = on.steps
                yield None
                on.steps, on.yields_at = ctx.steps, ctx.yields_at
            answers.append(answer)
            check_size(on.bytes - size_before)
            ctx.steps = on.steps
            if ctx.is_used_up():
                yield None
        return answers

    def _check_room(self, request: Prepare[Any], known: Intent | None) -> None:
        spans = len(request.spans)
        if spans > PREPARED_SPANS_MAX:
            raise TransactionTooLarge(
                f"the transaction has read {counted(spans, 'span')} in another range than that of "
                f"{shorten(request.anchor)}, the limit is {PREPARED_SPANS_MAX:,}; nothing was "
                "changed: read fewer and larger spans, or read at a timestamp outside of it "
                "(db.snapshot())"
            )
        if known is None and len(self._intents) >= PREPARED_MAX:
            raise _no_room(f"{PREPARED_MAX:,} transactions")

    def _check_size(self, size: int) -> None:
        if size > PREPARED_RECORD_BYTES_MAX:
            raise too_large_part()
        if self._intents.size_bytes + size > PREPARED_BYTES_MAX:
            raise _no_room(f"{PREPARED_BYTES_MAX:,} bytes of transactions")

    def _check_locks(self, request: Prepare[Any]) -> None:
        """Refuse a transaction that writes what another one has locked.

        It does not wait: meanwhile its other parts would keep everybody away from what they have
        prepared. Its next try asks for the lock first.
        """
        if not self._locks.held:
            return
        for write in request.writes:
            token = write.touches()
            if token is not None:
                blocker = self._locks.blocker(token, request.transaction_id)
                if blocker is not None:
                    raise locked(blocker)

    # --- the end

    def resolve(self, ctx: Evaluation, request: Resolve) -> Generator[object, None, None] | None:
        """Evaluate ``Resolve``.

        Raises:
            WrongRange: some of its span belongs to another range.
        """
        if not self._bounds.contains_span(request.start, request.end):
            raise WrongRange(self._bounds.descriptor)
        intent = self._intents.by_transaction.get(request.transaction_id)
        if intent is None or intent.ballot != request.ballot:
            return None
        if not request.timestamp:
            self._end(ctx, intent)
        elif intent.timestamp <= request.timestamp:
            self._clock.pass_over(request.timestamp)
            return self._commit(ctx, intent, request.timestamp)
        return None

    def _commit(
        self, ctx: Evaluation, intent: Intent, timestamp: int
    ) -> Generator[object, None, None]:
        """Carry out the writes of a transaction at the timestamp of its commit."""
        if intent.written or intent.written_spans or intent.inboxes:
            writes = self._stored_writes(ctx, intent) if intent.writes is None else intent.writes
            ctx.transaction_id, ctx.source = intent.transaction_id, intent.anchor
            evaluations = self._evaluations(
                ctx, zip(writes, intent.answers, strict=True), timestamp
            )
            try:
                yield from self._carry_out(ctx, ctx, evaluations)
            except Unavailable:
                raise  # for now: it is asked again
            except Error:
                _log.critical(
                    "a committed transaction cannot be carried out here: its keys stay as they "
                    "are, and nobody may write them; please report this", exc_info=True,
                )  # fmt: skip
                raise
            finally:
                _set_time(ctx, self._clock.now())
        self._end(ctx, intent)
        ctx.after.append(partial(self._release, intent.transaction_id))

    def _evaluations(
        self, ctx: Evaluation, writes: Iterable[tuple[Any, Any]], timestamp: int
    ) -> Iterator[Callable[[], Any]]:
        """Iterate over the evaluations of writes, each to be carried out at once.

        Args:
            ctx: the proposal.
            writes: the writes, each with the answer of its trial.
            timestamp: the timestamp of the commit.
        """
        for write, answer in writes:
            settle = self._registry.committed.get(type(write))
            if settle is None:
                _set_time(ctx, timestamp)
                yield partial(self._writes[type(write)], ctx, write)
            else:
                _set_time(ctx, self._clock.now())
                yield partial(settle, ctx, write, answer)

    def _stored_writes(self, ctx: Evaluation, intent: Intent) -> list[Any]:
        stored = ctx.get(self._intents.record_key(intent.transaction_id))
        assert stored is not None
        return self._decode_writes(decode_record(stored).writes)

    def _end(self, ctx: Evaluation, intent: Intent) -> None:
        ctx.writes[self._intents.record_key(intent.transaction_id)] = None
        self._intents.remove(intent)
        ctx.after.append(partial(self._intents.gone, intent))

    @functools.cached_property
    def _decode_writes(self) -> Callable[[msgspec.Raw], list[Any]]:
        """Return the decoder of the writes in a record; the range does not know all kinds."""
        kinds = [kind for kind in self._writes if issubclass(kind, Write) and kind.is_prepared]
        any_write: Any = functools.reduce(operator.or_, kinds)
        return msgspec.msgpack.Decoder(list[any_write]).decode


def _record(timestamp: int, request: Prepare[Any], answers: list[Any]) -> PreparedRecord:
    written: list[bytes] = []
    written_spans: list[tuple[bytes, bytes | None]] = []
    inboxes: list[bytes] = []
    for write in request.writes:
        concern = write.concerns()
        assert isinstance(concern, KeySet)
        if write.is_of_inbox:
            inboxes += concern.keys
        written += concern.keys
        written_spans += concern.spans
    return PreparedRecord(
        request.ballot, request.anchor, timestamp, request.began, request.reads, request.spans,
        written, written_spans, inboxes, answers, msgspec.Raw(_encode(request.writes)),
    )  # fmt: skip


def _set_time(ctx: Evaluation, timestamp: int) -> None:
    ctx.timestamp, ctx.stamp = timestamp, timestamp.to_bytes(8, "big")


def _to_the_end(evaluating: Generator[object, None, Prepared]) -> Prepared:
    while True:
        try:
            next(evaluating)
        except StopIteration as stop:
            prepared: Prepared = stop.value
            return prepared


def _check_kinds(request: Prepare[Any]) -> None:
    for write in request.writes:
        if not write.is_prepared:
            raise Invalid(
                f"{type(write).__name__} concerns another range than that of the first key that "
                f"the transaction writes, {shorten(request.anchor)}; nothing was changed: do it in "
                "a transaction of its own"
            )


def _outdated() -> TransactionConflict:
    return TransactionConflict(
        "the transaction was committed again meanwhile, by another node; nothing was changed here"
    )


def _no_room(taken: str) -> Unavailable:
    return Unavailable(
        f"a range has prepared {taken} over several ranges, and prepares no more; nothing was "
        "changed: try again",
        retry_after=_RETRY_SECONDS,
    )
