"""The coordinator: it runs the commits whose anchors lie in its range, over several ranges.

::

    client ── commit ──▶ anchor ── Prepare ──▶ others: check, record ──▶ p           round 1
                         anchor: T above all p · own reads, writes · COMMIT record    round 2
    client ◀──── T ───── anchor ── Resolve(T) ──▶ others                     (:mod:`.resolver`)

A *run* is in memory only. It has a :class:`.Ballot`, and it is *over* when it has failed, was
wounded, or has taken too long. Then it never commits, and its ballot is dead. The second round is a
commit of the own part like any other: it waits for locks and intents, and its reads are checked. In
one write it also leaves the COMMIT record, with the ballot, and the spans that have to hear of it.
From its evaluation on it is *decided*, and nobody wounds it.

Reads in other ranges wait for what has committed and is not carried out there. Claims of queues do
not. A commit that changes queues in other ranges is therefore answered after these have carried it
out, or after ``HELD_SECONDS``.

Everything here is synchronous. ``step`` does what there is to do, and tells when it wants to be
called again. Whatever a carrier answers is only noted until then.

Invariants:

* A run that is not in memory, under its lease, has committed or never will.
* The evaluation of the second round looks whether its run is over.
* The clock passes the timestamps of all parts before the second round is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from postroom.errors import Error, TransactionConflict, Unavailable
from postroom.kv import keys
from postroom.limits import PREPARED_RECORD_BYTES_MAX
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import Call, NotLeaseholder
from postroom.ranges.carrier import Carrier
from postroom.ranges.contract import KeySet, Request
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.requests import Committed, CommitTransaction, Now
from postroom.ranges.transactions.one_range import check_age, from_record
from postroom.ranges.transactions.parts import Division, Part, merged, too_large_part
from postroom.ranges.transactions.records import (
    UnresolvedCommit,
    commit_record,
    name_of,
    unresolved_record,
)
from postroom.ranges.transactions.requests import Ballot, Prepare, Prepared

_encode: Final = msgspec.msgpack.Encoder().encode

if TYPE_CHECKING:
    from postroom.ranges.held_answers import HeldAnswers
    from postroom.ranges.replica import Replica

RUN_SECONDS: Final = 2.0
"""The time after which a run is over that is not decided."""
PUT_OFF_SECONDS: Final = 0.002
"""The time after which a run is tried again that may not begin, since ranges are protected."""
ASKED_AGAIN_SECONDS: Final = 0.5
"""The time after which a part is asked again that has not answered."""


class _Asked:
    """A part that is being prepared."""

    __slots__ = ("answer", "ask_at", "part")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.answer: Prepared | None = None
        self.ask_at = 0.0


class CommitRun:
    """A run of a commit; see the module.

    Attributes:
        ballot: its ballot.
        request: the whole commit.
        calls: the calls that are told the outcome.
        own: the part in this range; ``asked``: the others.
        generation: the generation of the range when it was divided.
        own_call: the call of the second round; ``None``: the first one is under way.
        ends_at: when it is over, unless it is decided.
        is_over: whether it will never commit.
        is_decided: whether its COMMIT record is evaluated.
        name: the name of the commit, once it is decided.
    """

    __slots__ = (
        "asked", "ballot", "calls", "ends_at", "generation", "is_decided", "is_over", "name", "own",
        "own_call", "request",
    )  # fmt: skip

    def __init__(self, ballot: Ballot, call: Call, division: Division, ends_at: float) -> None:
        self.ballot = ballot
        self.request: CommitTransaction[Any] = call.request
        self.calls = [call]
        self.own, self.generation = division.own, division.generation
        self.asked = [_Asked(part) for part in division.others]
        self.own_call: _OwnCall | None = None
        self.ends_at = ends_at
        self.is_over = self.is_decided = False
        self.name = b""

    def preparation(self, part: Part) -> Prepare[Any]:
        """Return the request that prepares a part."""
        request = self.request
        return Prepare(
            request.transaction_id, self.ballot, request.anchor, request.began,
            request.read_timestamp, part.reads, part.spans, part.writes,
        )  # fmt: skip

    def own_request(self) -> CommitTransaction[Any]:
        """Return the commit of the own part."""
        request, own = self.request, self.own
        return CommitTransaction(
            request.transaction_id, request.began, request.seconds_max, request.read_timestamp,
            request.anchor, own.reads, own.spans, own.writes,
        )  # fmt: skip

    @property
    def is_carried_out_first(self) -> bool:
        """Return whether other ranges carry it out before it is answered."""
        return any(write.is_carried_out_first for each in self.asked for write in each.part.writes)

    @property
    def spans(self) -> list[tuple[bytes, bytes | None]]:
        """Return the spans of the ranges that have prepared it."""
        return [(each.part.recipient.start, each.part.recipient.end) for each in self.asked]


_Ended: TypeAlias = Callable[[Any, Any, Sequence[bytes]], None]
"""A function that takes a result, or an error, and the names after which it is told."""


class _OwnCall(Call):
    """The call of the second round, or a read that waits for the lease."""

    __slots__ = ("_ended",)

    def __init__(self, request: Request, ended: _Ended) -> None:
        super().__init__(request)
        self._ended = ended

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._ended(result, error, ())

    def complete_after(self, names: Sequence[bytes], result: Any, held: HeldAnswers) -> None:
        del held  # the calls of the run are held
        self._ended(result, None, names)


class Coordinator:
    """The coordinator of one range; see the module.

    Args:
        replica: the replica of the range.
        carrier: the way to other ranges.
        monotonic: a function that returns seconds that never go back.
        wake: a function that has ``step`` called soon.
        decided: a function that takes the name of a commit, and what has to hear of it.
        died: a function that takes a run that is over; its parts may hear of it.

    Attributes:
        runs: the runs, by transaction.
        carried_out: a function that takes the name of a commit that other ranges have carried out.
    """

    def __init__(
        self,
        replica: Replica,
        carrier: Carrier,
        monotonic: Callable[[], float],
        wake: Callable[[], None],
        decided: Callable[[bytes, UnresolvedCommit], None],
        died: Callable[[CommitRun], None],
    ) -> None:
        self._replica = replica
        self._parts = replica.usual_parts
        self._bounds = replica.bounds
        self._carrier = carrier
        self._monotonic = monotonic
        self._wake = wake
        self._decided = decided
        self._died = died
        self.runs: dict[bytes, CommitRun] = {}
        self._second_rounds: dict[int, CommitRun] = self._parts.committer.second_rounds
        self._arrived: list[Call] = []
        self._answers: list[tuple[CommitRun, _Asked, Any]] = []
        self._held = replica.memory.held
        self._held.wake = wake
        self.carried_out = self._held.told
        self._number = 0
        self._asks_for_lease = False
        self._parts.committer.decide = self._decide

    # --- calls

    def takes(self, call: Call) -> bool:
        """Take a call if it commits in several ranges, and is decided here; else return false."""
        request = call.request
        if (
            type(request) is not CommitTransaction
            or type(call) is _OwnCall
            or not self._is_here(request)
        ):
            return False
        self._arrived.append(call)
        if not self._replica.serves and not self._asks_for_lease:
            self._asks_for_lease = True
            self._replica.submit(_OwnCall(Now(), self._has_asked))
        self._wake()
        return True

    def _is_here(self, request: CommitTransaction[Any]) -> bool:
        """Return whether this range decides about a commit."""
        if request.anchor:
            return self._bounds.contains(request.anchor)
        return self._bounds.contains_all(request.concerns())

    def restart(self) -> None:
        """Begin under a new lease: no run of an earlier one commits."""
        self._number = 0

    def end(self) -> None:
        """End all runs: this replica serves no longer. Those in the second round are told."""
        calls, self._arrived = self._arrived, []
        for run in self.runs.values():
            run.is_over = True
            if run.own_call is None:
                calls += run.calls
                run.calls = []
        self.runs.clear()
        self._answers.clear()
        for call in calls:
            call.complete(None, self._not_leaseholder())

    def _not_leaseholder(self) -> NotLeaseholder:
        leader = self._replica.group.leader
        return NotLeaseholder(None if leader == self._replica.node_id else leader)

    # --- steps

    def step(self) -> float:
        """Do what there is to do; return in how many seconds there is more at the latest."""
        self._take_answers()
        pause = self._begin_arrived()
        now = self._monotonic()
        for run in list(self.runs.values()):
            if run.is_decided:
                continue
            if run.ends_at <= now:
                self._fail(run, _too_slow())
            elif run.own_call is None:
                pause = min(pause, self._ask(run, now))
            else:
                pause = min(pause, run.ends_at - now)
        return min(pause, self._held.give_old())

    def _begin_arrived(self) -> float:
        """Begin the runs of the calls that have arrived; return when to look again."""
        replica = self._replica
        if not self._arrived:
            return math.inf
        if replica.protections.of_node.are_still(replica.reading()):
            return PUT_OFF_SECONDS
        if not replica.group.is_leader:
            calls, self._arrived = self._arrived, []
            for call in calls:
                call.complete(None, self._not_leaseholder())
        elif not self._asks_for_lease:
            calls, self._arrived = self._arrived, []
            for call in calls:
                self._begin(call)
        return math.inf

    def _has_asked(self, _: object, error: BaseException | None, names: object) -> None:
        """Go on when the replica has the lease, or will not have it."""
        del names
        self._asks_for_lease = False
        if error is not None:
            calls, self._arrived = self._arrived, []
            for call in calls:
                call.complete(None, error)
        self._wake()

    def _begin(self, call: Call) -> None:
        request = call.request
        known = self.runs.get(request.transaction_id)
        if known is not None:
            known.calls.append(call)
            return
        record = self._parts.cache.get(_record_key(request))
        if record is not None:
            call.complete(from_record(record), None)
            return
        try:
            check_age(self._parts.clock.reading(), request, self._parts.registry)
            division = Division(request, self._bounds, self._carrier.recipient_of)
        except Error as error:
            call.complete(None, error)
            return
        if not division.others:
            wrong = self._bounds.refusal(request)
            if wrong is not None:  # it concerns records of another range, and no key there
                call.complete(None, wrong)
            else:  # the range has got wider meanwhile
                self._replica.submit(call)
            return
        closed = self._replica.intents.closed
        if not self._is_here(request) or (closed and closed.contain(KeySet((request.anchor,)))):
            call.complete(None, _moved())
            return
        if any(_is_too_large(request, part) for part in division.others):
            call.complete(None, too_large_part())
            return
        self._number += 1
        lease = self._replica.lease
        ballot = Ballot(self._replica.range_id, lease.sequence, self._number)
        ends_at = self._monotonic() + RUN_SECONDS
        self.runs[request.transaction_id] = CommitRun(ballot, call, division, ends_at)

    # --- round 1

    def _ask(self, run: CommitRun, now: float) -> float:
        """Ask the parts that have not answered; return when to ask again."""
        pause = run.ends_at - now
        for each in run.asked:
            if each.answer is not None:
                continue
            if each.ask_at <= now:
                each.ask_at = now + ASKED_AGAIN_SECONDS
                part = each.part
                self._carrier.carry(
                    part.recipient, run.preparation(part), partial(self._answered, run, each)
                )
            pause = min(pause, each.ask_at - now)
        return pause

    def _answered(self, run: CommitRun, asked: _Asked, answer: Any) -> None:
        self._answers.append((run, asked, answer))
        self._wake()

    def _take_answers(self) -> None:
        answers, self._answers = self._answers, []
        for run, asked, answer in answers:
            if run.is_over or run.own_call is not None or asked.answer is not None:
                continue
            if isinstance(answer, Prepared):
                asked.answer = answer
                if all(each.answer is not None for each in run.asked):
                    self._begin_second_round(run)
            elif isinstance(answer, WrongRange):
                self._fail(run, _moved())  # at once: a split may wait for its other parts
            elif isinstance(answer, NotLeaseholder | Unavailable) or not isinstance(answer, Error):
                asked.ask_at = self._monotonic() + _pause_of(answer)
            else:
                self._fail(run, answer)

    # --- round 2

    def _begin_second_round(self, run: CommitRun) -> None:
        least = max(each.answer.timestamp for each in run.asked if each.answer is not None)
        self._parts.clock.pass_over(least)
        request = run.own_request()
        run.own_call = _OwnCall(request, partial(self._ended, run, request))
        self._second_rounds[id(request)] = run
        if run.generation == self._bounds.descriptor.generation:
            run.own_call.within = self._bounds.descriptor
        self._replica.submit(run.own_call)

    def _decide(
        self,
        ctx: Evaluation,
        run: CommitRun,
        record_key: bytes,
        own_answers: list[Any],
    ) -> Committed:
        """Leave the COMMIT record of a run under evaluation."""
        parts = [(run.own, own_answers)]
        for each in run.asked:
            assert each.answer is not None
            assert each.answer.timestamp < ctx.timestamp
            parts.append((each.part, each.answer.answers))
        answers = merged(len(run.request.writes), parts)
        name, unresolved = (
            name_of(record_key), UnresolvedCommit(run.ballot, ctx.timestamp, run.spans)
        )  # fmt: skip
        ctx.writes[record_key] = commit_record(ctx.stamp, run.ballot, answers)
        prefix = keys.unresolved_prefix(self._replica.range_id)
        ctx.writes[prefix + name] = unresolved_record(unresolved)
        ctx.after.append(partial(self._decided, name, unresolved))
        run.is_decided, run.name = True, name
        return Committed(ctx.timestamp, answers)

    def _ended(
        self,
        run: CommitRun,
        request: CommitTransaction[Any],
        result: Any,
        error: Any,
        names: Sequence[bytes],
    ) -> None:
        """Tell the callers how the second round has ended, perhaps when some names are told."""
        self._second_rounds.pop(id(request), None)
        if self.runs.get(request.transaction_id) is run:
            del self.runs[request.transaction_id]
        run.is_over = True
        if isinstance(error, WrongRange) and run.generation < self._bounds.descriptor.generation:
            error = _moved()  # it is divided otherwise now
        calls, run.calls = run.calls, []
        if error is None and run.name and run.is_carried_out_first:
            names = [*names, run.name]
        if names:
            self._held.hold(names, calls, result)
            calls = []
        for call in calls:
            call.complete(result, error)
        if not run.is_decided:
            self._died(run)  # else it has committed, or may have done so
        self._wake()

    # --- the end without a commit

    def wound(self, run: CommitRun) -> None:
        """End a run that is not decided, for a transaction that waits for it."""
        self._fail(run, _wounded())

    def _fail(self, run: CommitRun, error: Exception) -> None:
        run.is_over = True
        del self.runs[run.request.transaction_id]
        calls, run.calls = run.calls, []
        own_call = run.own_call
        if own_call is not None and self._replica.cancel(own_call):
            del self._second_rounds[id(own_call.request)]
        elif own_call is not None:
            own_call.cancelled = False  # its evaluation finds that the run is over
        for call in calls:
            call.complete(None, error)
        self._died(run)


def _is_too_large(request: CommitTransaction[Any], part: Part) -> bool:
    """Return whether a part takes too many bytes to be prepared.

    A part in a span of which this node knows no range may lie in several ranges.
    """
    if not part.recipient.range_id:
        return False
    prepared = (request.anchor, part.reads, part.spans, part.writes)
    return len(_encode(prepared)) > PREPARED_RECORD_BYTES_MAX


def _record_key(request: CommitTransaction[Any]) -> bytes:
    return keys.transaction_key(request.anchor, request.transaction_id)


def _pause_of(answer: Any) -> float:
    return float(getattr(answer, "retry_after", None) or 0.05)


def _too_slow() -> Unavailable:
    return Unavailable(
        f"the ranges of the transaction did not all answer within {RUN_SECONDS:g} s; nothing was "
        "changed: try again (run() does)"
    )


def _moved() -> Unavailable:
    return Unavailable(
        "a range that the transaction concerns is split or moved just now; nothing was changed: "
        "try again",
        retry_after=0.05,
    )


def _wounded() -> TransactionConflict:
    return TransactionConflict(
        "an older transaction waits for what this one reads or writes; nothing was changed: try "
        "again (run() does)"
    )
