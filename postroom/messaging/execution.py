"""``ExecuteDue``: carries out due updates, adding up those that commute.

Ten thousand increments of one counter become one write: increments of a key are summed while nothing
else touches the key, and so are the metrics of ``Accounting``. The order of requests to one key is
kept otherwise: a ``Put`` first carries out the increments before it.

Each step (an update, or a sum) is a unit of its own in the proposal: its effect and the deletion of
its outbox entries, or the dead letter in its place, stay together. If a sum cannot be made, its
parts are tried one by one, so that only those die that must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from postroom.errors import Error
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.outbox import Outbox
from postroom.messaging.requests import Executable, ExecuteDue, Moved
from postroom.messaging.tokens import QUIET
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.evaluators import add_metrics, prefixes
from postroom.ranges.registry import Registry, WriteEvaluator
from postroom.ranges.requests import Accounting, Delete, DeleteRange, Increment, Put, UpdateRequest

_entries = msgspec.msgpack.Decoder(Executable)


@dataclass(slots=True)
class _Step:
    """Outbox entries (key, entry) that are carried out together, and what they come to."""

    request: UpdateRequest
    entries: list[tuple[bytes, Executable]] = field(default_factory=list)


class _AddingUp:
    """Turns entries, in order, into steps; increments of a key gather until something else comes."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self._sums: dict[bytes, tuple[int, list[tuple[bytes, Executable]]]] = {}
        self._deltas: dict[bytes, Counter[str]] = {}
        self._accounted: list[tuple[bytes, Executable]] = []

    def add(self, key: bytes, entry: Executable) -> None:
        """One more entry."""
        match entry.request:
            case Increment(key=target, by=by):
                total, parts = self._sums.get(target, (0, []))
                parts.append((key, entry))
                self._sums[target] = (total + by, parts)
            case Accounting(key=target, deltas=deltas):
                self._accounted.append((key, entry))
                for prefix in prefixes(target):
                    self._deltas.setdefault(prefix, Counter()).update(deltas)
            case Put(key=target) | Delete(key=target):
                self._flush(target)
                self.steps.append(_Step(entry.request, [(key, entry)]))
            case DeleteRange(start=start, end=end):
                for target in [k for k in self._sums if k >= start and (end is None or k < end)]:
                    self._flush(target)
                self.steps.append(_Step(entry.request, [(key, entry)]))

    def _flush(self, target: bytes) -> None:
        if target in self._sums:
            total, parts = self._sums.pop(target)
            self.steps.append(_Step(Increment(target, total), parts))

    def finish(self) -> tuple[list[_Step], dict[bytes, Counter[str]], list[tuple[bytes, Executable]]]:
        """The steps, and the metrics of all prefixes with the entries that they come from."""
        for target in list(self._sums):
            self._flush(target)
        return self.steps, self._deltas, self._accounted


class Execution:
    """Evaluates ``ExecuteDue`` with the range's own evaluators."""

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

    def execute_due(self, ctx: Evaluation, request: ExecuteDue) -> Moved:
        """``ExecuteDue``."""
        outbox = self._outbox
        due, next_due = outbox.take_due(ctx, request.messages_max)
        if due:
            self._carry_out(ctx, due)
            outbox.advance(ctx, due[-1][0])
        ctx.after.append(self._quiet)
        return Moved(len(due), 0 < next_due <= ctx.timestamp, next_due)

    def _carry_out(self, ctx: Evaluation, due: list[tuple[bytes, bytes]]) -> None:
        adding = _AddingUp()
        decode, add = _entries.decode, adding.add
        for key, stored in due:
            add(key, decode(stored))
        steps, deltas, accounted = adding.finish()
        for step in steps:
            self._try_step(ctx, step)
        if accounted:
            self._account(ctx, deltas, accounted)

    def _try_step(self, ctx: Evaluation, step: _Step) -> None:
        ctx.begin_step()
        try:
            self._writes[type(step.request)](ctx, step.request)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, step.entries, error)
        else:
            self._done(ctx, step.entries)

    def _account(
        self,
        ctx: Evaluation,
        deltas: dict[bytes, Counter[str]],
        entries: list[tuple[bytes, Executable]],
    ) -> None:
        ctx.begin_step()
        try:
            for prefix, metrics in deltas.items():
                add_metrics(ctx, prefix, metrics)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, entries, error)
        else:
            self._done(ctx, entries)

    def _failed(
        self, ctx: Evaluation, entries: list[tuple[bytes, Executable]], error: Error
    ) -> None:
        """One entry dies; several are tried one by one."""
        if len(entries) > 1:
            for key, entry in entries:
                self._try_step(ctx, _Step(entry.request, [(key, entry)]))
            return
        ((key, entry),) = entries
        self._dead_letters.bury(ctx, self._outbox.id_of(key), entry, f"{type(error).__name__}: {error}")
        ctx.erase(key)
        ctx.count("pending_updates", -1)

    def _done(self, ctx: Evaluation, entries: list[tuple[bytes, Executable]]) -> None:
        for key, _ in entries:
            ctx.erase(key)
        ctx.count("executed", len(entries))
        ctx.count("pending_updates", -len(entries))
