"""Execution: carries out deferred updates, adding up those that commute.

Ten thousand increments of one counter become one write: increments of a key are summed while
nothing else touches the key, and so are the metrics of ``Accounting``. The order of requests to
one key is kept otherwise: a ``Put`` first carries out the increments before it.

Each step (an update, or a sum) is a unit of its own in the proposal: its effect and the deletion of
its outbox entries, or the dead letter in its place, stay together. If a sum cannot be made, its
parts are tried one by one, so that only those die that must.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from postroom.errors import Error
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.outbox import Outbox, Parcel
from postroom.messaging.requests import Executable, ExecuteDue, Moved
from postroom.messaging.tokens import QUIET
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.evaluators import add_metrics, prefixes
from postroom.ranges.registry import Registry, WriteEvaluator
from postroom.ranges.requests import Accounting, DeleteRange, Increment, UpdateRequest

_entries = msgspec.msgpack.Decoder(Executable)


class Part(NamedTuple):
    """One update: where it is stored (``b""``: nowhere), and what there is to say of it."""

    stored_at: bytes
    id: bytes
    request: UpdateRequest
    transaction_id: bytes
    source: bytes


class Step(NamedTuple):
    """Parts that are carried out together, and the request that they come to."""

    request: Any
    parts: list[Part]


class Totals(NamedTuple):
    """Metrics of prefixes, summed over the parts."""

    metrics: dict[bytes, dict[str, int]]
    parts: list[Part]


class AddingUp:
    """Turns updates, in order, into steps; increments of a key gather until something else
    comes.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.totals = Totals({}, [])
        self._sums: dict[bytes, int] = {}
        self._parts: dict[bytes, list[Part]] = {}

    def add(self, part: Part) -> None:
        """One more update."""
        request = part.request
        if type(request) is Increment:
            key = request.key
            if key in self._sums:
                self._sums[key] += request.by
                self._parts[key].append(part)
            else:
                self._sums[key] = request.by
                self._parts[key] = [part]
        elif type(request) is Accounting:
            self._account(request, part)
        else:
            self._other(request, part)

    def finish(self) -> None:
        """No more come: what has gathered becomes steps."""
        for key in list(self._sums):
            self._flush(key)

    def _account(self, request: Accounting, part: Part) -> None:
        self.totals.parts.append(part)
        for prefix in prefixes(request.key):
            sums = self.totals.metrics.setdefault(prefix, {})
            for metric, delta in request.deltas.items():
                sums[metric] = sums.get(metric, 0) + delta

    def _other(self, request: Any, part: Part) -> None:
        """Does not commute with the increments of the keys that it touches: they come first."""
        if type(request) is DeleteRange:
            start, end = request.start, request.end
            for key in [k for k in self._sums if k >= start and (end is None or k < end)]:
                self._flush(key)
        else:
            self._flush(request.key)
        self.steps.append(Step(request, [part]))

    def _flush(self, key: bytes) -> None:
        if key in self._sums:
            parts = self._parts.pop(key)
            packed = any(getattr(part.request, "packed", False) for part in parts)
            self.steps.append(Step(Increment(key, self._sums.pop(key), packed), parts))


class Execution:
    """Takes updates up as they are committed, and evaluates ``ExecuteDue``."""

    def __init__(
        self,
        outbox: Outbox,
        dead_letters: DeadLetters,
        writes: dict[type, WriteEvaluator],
        wake: Callable[[list[object]], None],
    ) -> None:
        self._outbox = outbox
        self._dead_letters = dead_letters
        self._writes = writes
        self._quiet = partial(wake, [QUIET])

    def register(self, registry: Registry) -> None:
        """Adds it to ``registry``."""
        registry.commands[ExecuteDue] = self.execute_due
        registry.companions.append(self.execute_deferred)

    def execute_deferred(self, ctx: Evaluation) -> None:
        """What this proposal defers: carried out along with it, or stored for later."""
        parcels: list[Parcel] = ctx.deferred
        if not parcels:
            return
        ctx.deferred = []
        adding = AddingUp()
        at_once, now = self._outbox.is_empty(ctx), ctx.timestamp
        for due, id_, request, transaction_id, source in parcels:
            if at_once and due <= now:
                adding.add(Part(b"", id_, request, transaction_id, source))
            else:
                self._outbox.store(ctx, due, id_, Executable(request, transaction_id, source))
        self._carry_out(ctx, adding)

    def execute_due(self, ctx: Evaluation, request: ExecuteDue) -> Moved:
        """``ExecuteDue``."""
        outbox = self._outbox
        due, next_due = outbox.take_due(ctx, request.messages_max)
        adding = AddingUp()
        for key, stored in due:
            entry = _entries.decode(stored)
            id_ = outbox.id_of(key)
            adding.add(Part(key, id_, entry.request, entry.transaction_id, entry.source))
        if due:
            self._carry_out(ctx, adding)
            outbox.advance(ctx, due[-1][0])
        ctx.after.append(self._quiet)
        return Moved(len(due), 0 < next_due <= ctx.timestamp, next_due)

    def _carry_out(self, ctx: Evaluation, adding: AddingUp) -> None:
        adding.finish()
        for step in adding.steps:
            self._try_step(ctx, step)
        if adding.totals.parts:
            self._try_totals(ctx, adding.totals)

    def _try_step(self, ctx: Evaluation, step: Step) -> None:
        ctx.begin_step()
        try:
            self._writes[type(step.request)](ctx, step.request)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, step.parts, error)
        else:
            self._done(ctx, step.parts)

    def _try_totals(self, ctx: Evaluation, totals: Totals) -> None:
        ctx.begin_step()
        try:
            for prefix, sums in totals.metrics.items():
                add_metrics(ctx, prefix, sums)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, totals.parts, error)
        else:
            self._done(ctx, totals.parts)

    def _failed(self, ctx: Evaluation, parts: list[Part], error: Error) -> None:
        """A single update dies; of several, each is tried by itself."""
        if len(parts) > 1:
            for part in parts:
                self._try_step(ctx, Step(part.request, [part]))
            return
        (part,) = parts
        entry = Executable(part.request, part.transaction_id, part.source)
        self._dead_letters.bury(ctx, part.id, entry, f"{type(error).__name__}: {error}")
        self._forget(ctx, part)

    def _done(self, ctx: Evaluation, parts: list[Part]) -> None:
        for part in parts:
            if part.stored_at:
                self._forget(ctx, part)
        ctx.count("executed", len(parts))

    def _forget(self, ctx: Evaluation, part: Part) -> None:
        if part.stored_at:
            ctx.erase(part.stored_at)
            ctx.count(self._outbox.pending, -1)
