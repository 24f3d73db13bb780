"""The evaluators of the requests that every range serves.

Writes answer what the caller wants to know (``Increment`` the new value, ``DeleteRange`` how many);
failures raise the errors of :mod:`postroom.errors` and leave no trace.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Generator, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.errors import (
    ConditionFailed,
    Invalid,
    Overflow,
    SnapshotTooOld,
    TransactionConflict,
    WrongType,
    shorten,
)
from postroom.kv import keys, versions
from postroom.limits import INTEGER_MAX, INTEGER_MIN, READ_BYTES_MAX
from postroom.ranges.accounting import accounting, read_metrics
from postroom.ranges.bounds import Bounds
from postroom.ranges.checks import SEPARATOR
from postroom.ranges.commit_waits import wounded
from postroom.ranges.evaluation import Blocked, Evaluation, MustWait, View, check_size
from postroom.ranges.locks import LockTable, Token
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Registry
from postroom.ranges.protections import PositionRecords, Protections
from postroom.ranges.requests import (
    Accounting,
    ConditionalPut,
    Delete,
    DeleteRange,
    Get,
    GetForUpdate,
    GetMany,
    Increment,
    Lock,
    Now,
    Pairs,
    Protect,
    Put,
    ReadAccounting,
    ReverseScan,
    Scan,
    Unprotect,
    Value,
    Values,
)

_STEP_BYTES: Final = 4 * 1024 * 1024
"""A step of a deferred ``DeleteRange`` writes about so much at most."""

INTEGER: Final = struct.Struct(">q")


# --- writes ---------------------------------------------------------------------------------


def put(ctx: Evaluation, request: Put) -> None:
    """Evaluate ``Put``."""
    kind = versions.VALUE_KIND
    if request.integer:
        kind = versions.INTEGER_KIND
        if len(request.value) != INTEGER.size:
            raise _no_integer(request.key, request.value)
    head = keys.head_key(request.key)
    ctx.put_version(head, ctx.get(head), kind, request.value)


def conditional_put(ctx: Evaluation, request: ConditionalPut) -> None:
    """Evaluate ``ConditionalPut``."""
    head = keys.head_key(request.key)
    stored = ctx.get(head)
    actual, integer = versions.payload(stored), versions.is_integer(stored)
    if integer and actual is not None and request.packed:
        number: int = INTEGER.unpack(actual)[0]
        if number != request.or_integer:
            raise _condition_failed(request, str(number), number)
    elif actual != request.expected:
        raise _condition_failed(request, _describe(actual), actual)
    ctx.put_version(head, stored, versions.VALUE_KIND, request.value)


def _condition_failed(request: ConditionalPut, contains: str, actual: object) -> ConditionFailed:
    return ConditionFailed(
        f"{shorten(request.key)} contains {contains}, not {_describe(request.expected)}; "
        "nothing was changed: read it again and decide anew",
        actual,
    )


def _describe(value: bytes | None) -> str:
    return "nothing" if value is None else shorten(value)


def increment(ctx: Evaluation, request: Increment) -> int:
    """Evaluate ``Increment``; return the new value."""
    head = keys.head_key(request.key)
    stored = ctx.get(head)
    if stored is None:
        number = added(None, request.by, request.key, integer=False, packed=request.packed)
    else:
        value, integer = versions.payload(stored), stored[0] == versions.INTEGER
        number = added(value, request.by, request.key, integer=integer, packed=request.packed)
    ctx.put_version(head, stored, versions.INTEGER_KIND, INTEGER.pack(number))
    return number


def number_in(stored: bytes, key: bytes, *, integer: bool, packed: bool) -> int:
    """Return the integer in the bytes stored at ``key``.

    Applications without a codec may put 8 bytes themselves: they are integers too, and stay so once
    incremented. If a codec packs the values (``packed``), only integers that ``Increment`` has
    stored count.

    Raises:
        WrongType: they are none.
    """
    if len(stored) != INTEGER.size or (packed and not integer):
        raise _no_integer(key, stored)
    number: int = INTEGER.unpack(stored)[0]
    return number


def _no_integer(key: bytes, stored: bytes) -> WrongType:
    return WrongType(
        f"{shorten(key)} contains {len(stored)} bytes, no 64-bit integer (8 bytes, big-endian, or "
        "what increment has stored); nothing was changed: delete the key or increment another one"
    )


def added(stored: bytes | None, by: int, key: bytes, *, integer: bool, packed: bool) -> int:
    """Return the integer stored at ``key`` plus ``by``.

    Raises:
        WrongType: what is stored is no integer.
        Overflow: the sum is outside the range of 64 bits.
    """
    number = by
    if stored is not None:
        number += number_in(stored, key, integer=integer, packed=packed)
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise Overflow(
            f"incrementing {shorten(key)} by {by} leaves the range of a 64-bit signed integer; "
            "nothing was changed"
        )
    return number


def delete(ctx: Evaluation, request: Delete) -> None:
    """Evaluate ``Delete``."""
    head = keys.head_key(request.key)
    ctx.delete_version(head, ctx.get(head))


def delete_range(
    bounds: Bounds, ctx: Evaluation, request: DeleteRange
) -> Generator[None, None, Any]:
    """Evaluate ``DeleteRange`` over as many turns as it takes; return the number of keys deleted.

    Raises:
        TransactionTooLarge: they are more than a transaction may delete.
    """
    if request.part_of is not None:
        began = request.part_of or ctx.timestamp
        own = msgspec.structs.replace(request, end=bounds.clip(request.start, request.end)[1])
        deleted, cursor = delete_some(ctx, own, request.start, began.to_bytes(8, "big"))
        if cursor is None and own.end != request.end:
            return deleted, own.end, request.part_of
        return deleted, cursor, began
    deleted, size_before = 0, ctx.bytes
    for head, latest in _heads_there(ctx, request.start, request.end):
        if latest == b"":
            ctx.steps += versions.SEEK_STEPS
        else:
            deleted += _delete_one(ctx, head, ctx.get(head), size_before)  # perhaps turns later
        if ctx.is_used_up():
            yield
    return deleted


def delete_some(
    ctx: Evaluation, request: DeleteRange, cursor: bytes, began: bytes
) -> tuple[int, bytes | None]:
    """Do a step of a deferred ``DeleteRange``: from ``cursor`` on, delete what was there then.

    Returns:
        How many keys went, and where the next step goes on; ``None``: it is done.
    """
    deleted, visited, size_before = 0, 0, ctx.bytes
    start = max(request.start, cursor)
    ctx.steps += 16
    for head, latest in _heads_there(ctx, start, request.end):
        is_full = deleted >= limits.DELETED_AT_ONCE_MAX or ctx.bytes - size_before > _STEP_BYTES
        if visited and (is_full or visited >= limits.DELETION_VISITS_MAX):
            return deleted, keys.user_key(head)
        visited += versions.SEEK_STEPS if latest == b"" else 1
        if latest and latest[1:9] <= began:
            deleted += _delete_one(ctx, head, latest, size_before)
    return deleted, None


def _delete_one(ctx: Evaluation, head: bytes, old: bytes | None, size_before: int) -> int:
    ctx.steps += 1
    if not ctx.delete_version(head, old):
        return 0
    ctx.grow(len(old or b""))
    check_size(
        ctx.bytes - size_before,
        "do the work in smaller transactions, or defer it: "
        "tx.enqueue_update(DeleteRange(start, end)) deletes any number of keys, step by step",
    )
    return 1


def _heads_there(
    ctx: Evaluation, start: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the heads in a span and their newest versions, in order, each key once.

    Keys that this proposal writes are among them, and seeks, as :func:`.versions.heads` tells them.

    The stored keys are gone through once, and those written before are sorted once. Deleting all of
    them thus takes time in proportion to their number.
    """
    lower, upper = keys.data_span(start, end)
    stored = versions.heads(_Stored(ctx), start, end, reverse=False)
    written = [raw for raw in ctx.written(lower, upper) if keys.is_head(raw)]
    if not written:
        yield from stored
        return
    ours = ((head, ctx.get(head)) for head in written)
    last = b""
    for head, latest in heapq.merge(ours, stored, key=itemgetter(0)):  # ours first
        if head != last:
            last = head
            yield head, latest


class _Stored:
    """The engine below an evaluation."""

    def __init__(self, ctx: Evaluation) -> None:
        self.get = ctx.get
        self.iterate = ctx.stored


# --- reads ----------------------------------------------------------------------------------


class RangeReads:
    """The reads of one replica: they need its locks, who holds them, and its protections."""

    def __init__(
        self,
        bounds: Bounds,
        locks: LockTable,
        protections: Protections,
        positions: PositionRecords,
        holders: Holders,
        wound: Callable[[bytes], None],
    ) -> None:
        self._bounds = bounds
        self._locks = locks
        self._wound = wound
        self._protections = protections
        self._positions = positions
        self._holders = holders

    def register(self, registry: Registry) -> None:
        """Register the evaluators of reads."""
        registry.reads |= {
            Get: self.get,
            GetForUpdate: self.get_for_update,
            Lock: self.lock,
            GetMany: self.get_many,
            Scan: partial(self.scan, reverse=False),
            ReverseScan: partial(self.scan, reverse=True),
            ReadAccounting: self.read_accounting,
            Now: self.now,
            Protect: self.protect,
            Unprotect: self.unprotect,
        }
        registry.sizes |= {
            "locks": self._locks.__len__,
            "lock waits": lambda: self._locks.waits,
            "protections": self._protections.__len__,
            "engine snapshots": lambda: self._protections.whole,
        }

    def forget(self) -> None:
        """Forget all locks and protections: a lease has begun or ended."""
        self._locks.clear()
        self._protections.clear()

    def end(self) -> None:
        """Forget everything, with the snapshots of the range: the lease has ended."""
        self.forget()
        self._protections.drop()

    def given_up(self, request: object) -> None:
        """Note that a request waits for its lock no more."""
        if isinstance(request, GetForUpdate | Lock):
            self._locks.waits_no_more(request)

    def now(self, view: View, _: Now) -> int:
        """Evaluate ``Now``."""
        if view.before:
            raise Blocked  # a proposal under evaluation may have a later timestamp
        return view.now

    def get(self, view: View, request: Get) -> Value:
        """Evaluate ``Get``."""
        at = request.timestamp
        if not at:
            return _value(view.get(keys.head_key(request.key)), view.now)
        self.check_age(view, at)
        return _value(versions.as_of(view, request.key, at.to_bytes(8, "big")), at)

    def get_for_update(self, view: View, request: GetForUpdate) -> Value:
        """Evaluate ``GetForUpdate``."""
        self._locks.waits_no_more(request)  # now: it may be told to begin anew
        if view.before:
            raise Blocked  # a proposal under evaluation may write the key
        head = view.get(keys.head_key(request.key))
        at = request.timestamp or view.now
        since = self._locks.locks_since(request.transaction_id)
        has_changed = head is not None and head[1:9] > at.to_bytes(8, "big")
        if has_changed and not (request.moves and since is not None and since <= at):
            raise TransactionConflict(
                f"another transaction changed {shorten(request.key)} since this one first read; "
                "nothing was changed: try again (run() does)",
                keys=(request.key,),
            )
        self._take([request.key], request, view.now)
        # If it moves: nobody could change what it has read and locked up to now.
        return _value(head, view.now if has_changed else at)

    def lock(self, view: View, request: Lock) -> None:
        """Evaluate ``Lock``, in the order of the keys, so that no circle is formed."""
        self._locks.waits_no_more(request)
        if view.before:
            raise Blocked
        view.steps += len(request.keys) + len(request.spans)
        self._take([*sorted(request.keys), *request.spans], request, view.now)
        if view.in_flight:
            raise Blocked  # it may write the keys, above where a read would be served by now

    def _take(self, tokens: list[Token], request: GetForUpdate | Lock, now: int) -> None:
        """Lock ``tokens``, or wait for the first of them that cannot be had."""
        locks, transaction_id = self._locks, request.transaction_id
        try:
            for token in tokens:
                while (blocker := locks.acquire(token, transaction_id, now)) is not None:
                    locks.wait(request, blocker, request.began or now)
                    victim = locks.youngest_of_circle(transaction_id)
                    if victim is None:
                        raise MustWait(blocker)
                    locks.waits_no_more(request)
                    if victim == transaction_id:
                        raise wounded(blocker)
                    self._wound(victim)
        finally:  # whatever comes of it: what was locked up to there has an end
            if locks.locks_since(transaction_id) is not None:
                self._holders.hold(transaction_id, request.seconds_max)

    def get_many(self, view: View, request: GetMany) -> Values:
        """Evaluate ``GetMany``, for as many keys as a turn has room for."""
        at = self._read_timestamp(view, request.timestamp)
        stamp = at.to_bytes(8, "big")
        values: list[bytes | None] = []
        integers: list[int] = []
        size, bytes_max = 0, min(request.bytes_max, READ_BYTES_MAX)
        for key in request.keys:
            if values and view.is_used_up():
                break
            view.steps += 1
            version = versions.as_of(view, key, stamp)
            value = versions.payload(version)
            size += len(value or b"")
            if size > bytes_max and values:
                break
            if versions.is_integer(version):
                integers.append(len(values))
            values.append(value)
        return Values(values, at, tuple(integers))

    def scan(self, view: View, request: Scan | ReverseScan, *, reverse: bool) -> Pairs:
        """Evaluate ``Scan``, or ``ReverseScan``."""
        at = self._read_timestamp(view, request.timestamp)
        page = versions.scan(
            view,
            request.start,
            request.end,
            at.to_bytes(8, "big"),
            pairs_max=request.pairs_max,
            bytes_max=min(request.bytes_max, READ_BYTES_MAX),
            reverse=reverse,
            steps_max=limits.TURN_STEPS_MAX,
            gaps=view.gaps,
        )
        view.steps += page.steps
        return Pairs(page.pairs, page.resume, at, page.integers)

    def read_accounting(self, view: View, request: ReadAccounting) -> dict[str, int]:
        """Evaluate ``ReadAccounting``."""
        prefix = request.prefix.rstrip(SEPARATOR)
        return read_metrics(view.get(keys.accounting_key(prefix)))

    def protect(self, view: View, request: Protect) -> int:
        """Evaluate ``Protect``; return the protected timestamp."""
        at = self._read_timestamp(view, request.timestamp)
        self._protections.check_age(at, view.now, lambda: self._positions.oldest(view))
        if not request.whole:
            self._protections.add(at)
            return at
        if request.timestamp:
            raise Invalid(
                "only what is stored now can be protected as a whole, not what was stored at "
                f"{at}; nothing was protected: leave the timestamp out"
            )
        if view.before or view.in_flight:
            raise Blocked  # proposals under way have earlier timestamps, and are not stored yet
        if not self._bounds.is_whole:
            raise Invalid(
                "a range protects a timestamp as a whole alone, and this store has several; "
                "nothing was protected: ask each of them with ProtectWhole"
            )
        self._protections.add_whole(at, request.client, request.host)
        return at

    def unprotect(self, _: View, request: Unprotect) -> None:
        """Evaluate ``Unprotect``."""
        self._protections.remove(request.timestamp)

    def _read_timestamp(self, view: View, timestamp: int) -> int:
        if not timestamp:
            return view.now
        self.check_age(view, timestamp)
        return timestamp

    def check_age(self, view: View, at: int) -> None:
        """Refuse a timestamp that is collected, or lies in the future."""
        if at < self._protections.collected:
            raise SnapshotTooOld(
                f"versions before {self._protections.collected} have been garbage collected, "
                f"{at} is older: read at a later timestamp, or open with a longer gc_ttl"
            )
        self._protections.check_replaced(at)
        if at > view.now:
            raise ValueError(f"the timestamp {at} lies in the future: use one that now() returned")


def _value(version: bytes | None, at: int) -> Value:
    if version is None:
        return Value(None, at)
    return Value(versions.payload(version), at, version[0] == versions.INTEGER)


def register(registry: Registry, bounds: Bounds) -> None:
    """Register the evaluators of writes, in a range with ``bounds``."""
    registry.writes |= {
        Put: put,
        ConditionalPut: conditional_put,
        Increment: increment,
        Delete: delete,
        DeleteRange: partial(delete_range, bounds),
        Accounting: accounting,
    }
