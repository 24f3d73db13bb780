"""The results of tasks: kept in the transaction that ends the message, told to those who wait.

::

    KeepResult ─▶ the result, by kind and id ─┐            ┌─▶ ReadResult: returned, failed
                  an entry by its end of time ├─ applied ──┤
    Acknowledge ─▶ its message is done ───────┘  (notes)   └─▶ those who wait for it are woken
                                                               (:mod:`.waits`)

A result is a record of its own, since it may be kept for longer than its message. It counts only if
it is that of the message which has its kind and id now. A message that was replayed is pending
again. A request that waits is told when its message is done, dead or cancelled, or its queue
dropped. Only its own client ends it before that.

Each result has one entry by the time at which it goes, and one in its group. A result that replaces
another one takes these entries away. Results that are due are not told, whether they are deleted
already or not.

Several ranges may keep results of one name, of messages that were there one after the other. In a
store that is made of their image the newest is left, and the entries of the others stay until they
are due. An entry therefore counts for a result only if both are of the same message (``seq``). The
counter counts entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import LIST_MAX, READ_BYTES_MAX, RESULT_SECONDS_MAX
from postroom.messaging import counters
from postroom.messaging.queues import records
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import held, locators, read_body, read_state
from postroom.messaging.queues.queries import (
    GroupResult,
    ListGroupResults,
    ReadResult,
    ResultPage,
    ToldResult,
)
from postroom.messaging.queues.records import (
    Body,
    Entry,
    KeptResult,
    MessageState,
    ResultName,
    decoded,
    encode,
)
from postroom.messaging.queues.requests import KeepResult, TaskFailure
from postroom.messaging.queues.waits import ResultToken, TokenWaits
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, MustWait, View
from postroom.ranges.ports import Registry

_PENDING: Final = ToldResult("pending")
_WITHOUT_RESULT: Final = ToldResult("none")
_ENDED_BY_OTHERS: Final = {
    records.CANCELLED: "the message was cancelled",
    records.MOVED: "the message died, and was moved to the dead letter queue",
}


@dataclass(eq=False)
class Results:
    """The evaluators of results, in all queues of a range.

    Attributes:
        find: a function that returns the manager and the settings of a queue.
        known: the same for reads: it returns the manager as applied.
        waits: the requests that wait.
    """

    find: Callable[[Evaluation, str], tuple[Manager, QueueSettings]]
    known: Callable[[str], Manager]
    waits: TokenWaits

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes[KeepResult] = self.keep
        registry.reads |= {ReadResult: self.read, ListGroupResults: self.list_of_group}

    def keep(self, ctx: Evaluation, request: KeepResult) -> None:
        """Evaluate ``KeepResult``.

        Raises:
            Invalid: it names no attempt.
            LeaseLost: the attempt does not hold its message any more.
        """
        if request.attempt.epoch < 0 or request.attempt.by_id:
            raise Invalid(
                "a result belongs to the attempt that holds its message; nothing was changed: name "
                "the attempt, not an id"
            )
        manager, _ = self.find(ctx, request.queue)
        entry = held(ctx, manager, request.attempt).entry
        _forget(ctx, manager, entry)
        seconds = min(request.seconds, RESULT_SECONDS_MAX)
        until = ctx.timestamp + from_seconds(seconds)
        result = KeptResult(
            entry.seq, until, entry.group, request.value, request.failure, entry.locator[0]
        )
        _write(ctx, manager, entry, result)

    def read(self, view: View, request: ReadResult) -> ToldResult:
        """Evaluate ``ReadResult``.

        Raises:
            Invalid: there is no such queue, or it was dropped.
            MustWait: the message is not over, and the request waits for it.
        """
        told = _told(view, self.known(request.queue), request)
        if told is _PENDING and request.wait:
            token = ResultToken(request.queue, request.kind, request.id)
            raise MustWait(self.waits.add(request, token))
        self.waits.remove(request)
        return told

    def list_of_group(self, view: View, request: ListGroupResults) -> ResultPage:
        """Evaluate ``ListGroupResults``; failures are left out.

        Raises:
            Invalid: there is no such queue.
        """
        manager = self.known(request.queue)
        prefix = manager.layout.group_results_prefix(request.group)
        lower = prefix + request.after + b"\x00" if request.after else prefix
        page: list[GroupResult] = []
        size, last = 0, request.after
        for key, packed in view.iterate(lower, keys.after_prefix(prefix)):
            if len(page) >= min(request.results_max, LIST_MAX) or view.is_used_up():
                return ResultPage(page, last)
            name = decoded(records.result_names, packed, manager.name)
            result = _kept(view, manager, name.kind, name.id)
            view.steps += 2
            is_its_own = result is not None and result.seq == key[len(prefix) :]
            if result is not None and is_its_own and result.failure is None:
                size += len(result.value or b"")
                if page and size > READ_BYTES_MAX:
                    return ResultPage(page, last)
                page.append(GroupResult(name.kind, name.id, result.value))
            last = key[len(prefix) :]
        return ResultPage(page)


def purge(ctx: Evaluation, manager: Manager, results_max: int, bytes_max: int) -> bool:
    """Delete results whose time is over; return whether there are more.

    Args:
        results_max: the number of results that are deleted at most.
        bytes_max: the size of the proposal at which the rest is left to the next step.
    """
    layout = manager.layout
    head, end = manager.result_span
    due = layout.expiring + keys.u64(ctx.timestamp + 1)
    for key, packed in list(islice(ctx.iterate(head, due), results_max)):
        if ctx.bytes >= bytes_max:
            break
        name = decoded(records.result_names, packed, manager.name)
        result = _stored(ctx, manager, name.kind, name.id)
        if result is not None and result.seq == key[-records.SEQ_BYTES :]:
            ctx.writes[layout.result_key(name.kind, name.id)] = None
        _remove_entries(ctx, manager, name, key)
        head = key + b"\x00"
    until = manager.first_in(ctx, head, end)
    ctx.notes.append((manager, (), Manager.results_purged, head, until))
    return 0 < until <= ctx.timestamp


def _told(view: View, manager: Manager, request: ReadResult) -> ToldResult:
    """Return what is known of the result of a message."""
    view.steps += 6
    result = _kept(view, manager, request.kind, request.id)
    locator = next(locators(view, manager, request.id, request.kind, home=request.home), None)
    if locator is not None and not manager.host.bounds.contains(locator[0]):
        locator = None  # its range knows
    body = None if locator is None else read_body(view, manager, locator)
    if locator is None or body is None:
        # Another range may have the message, or a newer result of this name.
        asks_here = manager.host.bounds.is_whole or request.home is not None or request.everywhere
        if result is None or not asks_here:
            return ToldResult("unknown")
        return msgspec.structs.replace(_told_by(result), seq=result.seq)
    if result is not None and result.seq != body.seq:
        result = None
    return _told_of(body, read_state(view, manager, locator), result)


def _told_of(body: Body, state: MessageState | None, result: KeptResult | None) -> ToldResult:
    """Return what is known of a message that is there."""
    if state is None or state.seq != body.seq or state.status == records.LIVE:
        return _PENDING
    is_done = state.status in {records.DONE, records.ARCHIVED}
    if result is not None and is_done == (result.failure is None):
        return _told_by(result)
    if is_done:
        return _WITHOUT_RESULT
    reason = _ENDED_BY_OTHERS.get(state.status, state.error)
    return ToldResult("failed", failure=TaskFailure("", reason))


def _told_by(result: KeptResult) -> ToldResult:
    if result.failure is None:
        return ToldResult("returned", result.value)
    return ToldResult("failed", failure=result.failure)


def _kept(view: View, manager: Manager, kind: str, id_: bytes) -> KeptResult | None:
    """Return the result of a message, if its time is not over."""
    result = _stored(view, manager, kind, id_)
    return result if result is not None and result.until > view.now else None


def _stored(
    reader: Evaluation | View, manager: Manager, kind: str, id_: bytes
) -> KeptResult | None:
    stored = reader.get(manager.layout.result_key(kind, id_))
    return None if stored is None else decoded(records.results, stored, manager.name)


def _forget(ctx: Evaluation, manager: Manager, entry: Entry) -> None:
    """Delete the entries of a result that another one of the same name replaces."""
    before = _stored(ctx, manager, entry.kind, entry.id)
    if before is not None:
        name = ResultName(entry.kind, entry.id, before.group)
        _remove_entries(ctx, manager, name, manager.layout.expiring_key(before.until, before.seq))


def _remove_entries(
    ctx: Evaluation, manager: Manager, name: ResultName, expiring_key: bytes
) -> None:
    layout = manager.layout
    ctx.writes[expiring_key] = None
    if name.group:
        seq = expiring_key[-records.SEQ_BYTES :]
        ctx.writes[layout.group_results_prefix(name.group) + seq] = None
    ctx.grow(3 * (len(expiring_key) + len(name.id) + len(name.group)))
    ctx.steps += 4
    ctx.notes.append((manager, counters.RESULT_GONE, Manager.nothing, None, None))


def _write(ctx: Evaluation, manager: Manager, entry: Entry, result: KeptResult) -> None:
    layout = manager.layout
    name = encode(ResultName(entry.kind, entry.id, entry.group, result.home))
    ctx.writes[layout.result_key(entry.kind, entry.id)] = packed = encode(result)
    ctx.writes[layout.expiring_key(result.until, entry.seq)] = name
    if entry.group:
        ctx.writes[layout.group_results_prefix(entry.group) + entry.seq] = name
    ctx.grow(2 * len(packed) + 3 * (len(name) + WRITE_BYTES))
    ctx.steps += 3
    ctx.notes.append((manager, counters.RESULT_KEPT, Manager.result_kept, result.until, None))
