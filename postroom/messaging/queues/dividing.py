"""The division of a range's index of queues, beforehand, while the queues serve.

The bodies and states of messages lie under user keys, and are the right half's after a split. The
index of the queues, which is ordered by time, lies under the range. It is divided by copies::

    03 <left> 08 queue ...     the index: it alone serves until the split
    03 <left> 0B queue ...     a copy of what stays  ─┐ DivideSome copies 500 records a step
    03 <right> 08 queue ...    a copy of what goes   ─┘ each proposal keeps up what is copied
         │ Split
         ▼
    03 <left> 0B queue ...     the index of the left half     (next time, 08 and 0B change roles)
    03 <right> 08 queue ...    the index of the right half
    03 <left> 08 queue ...     useless: deleted in steps

Thus a split moves no record. No queue ever has two parts: until the split, claims, limits and order
are those of one queue, and then those of two. Nothing that reads the index knows of a division. To
cancel it is to delete the copies, in steps. The next leader goes on.

Scheduled and ready messages are copied from the last one on, if they are many. The first ones are
consumed meanwhile: they are neither copied, nor are copies of them kept up.

The queues have *counters* beside the index; both copies have theirs. Those of the copy that goes
are counted with each record that is copied, or changed. Those of the copy that stays are the
difference. Thus the equation of a queue holds for the copies, whenever it holds for the queue.

::

    03 <left> 05 "division"          a division is under way   →  [key, right id, what is copied]
    03 <left> 05 "useless"           what is to be deleted     →  spans of engine keys
    03 <left> 05 "index of queues"   the index in use, 08 or 0B
    03 <left> 05 "right half"        the right half's metadata is this range's for now

*Price:* each record of the index is written once, and deleted once, for each split. *Alternatives:*
two parts with managers of their own: all requests, claims and limits would have to know them. Or a
sweep after the split: the right half would not fire before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.kv.engine import ValueReader
from postroom.messaging.counters import read_queue_counts
from postroom.messaging.queues.cutting import (
    COUNTERS,
    HEAD_BYTES,
    NOTHING,
    cut,
    goes_right,
    grown,
    is_undivided,
    less,
    unit_of,
)
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.queues.records import INDEX_RECORD, UNDECODABLE, encode, index_in_use
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import Evaluation, merged
from postroom.ranges.split.records import decode_split, split_key
from postroom.ranges.state import RIGHT_HALF_RECORD

COPIED_AT_ONCE: Final = 500
"""The number of records that one step copies, or deletes."""
COPIED_BYTES: Final = 256 * 1024
"""The size of what one step copies: claims wait for the proposal in which it is."""
BYTES_PER_STEP: Final = 1024
"""The bytes of a record that are copied in a further step of evaluation."""
KEPT_UP_AT_ONCE: Final = 1000
"""The number of records whose copies are changed in one turn."""
_OVER: Final = object()


class IndexDivision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of a division that is under way.

    Attributes:
        key: the first key of the right half.
        right_id: the id of the right half.
        copied: the engine key up to which everything is copied.
        back: the engine key from which on the subspace that begins at ``copied`` is copied, too;
            empty: from none.
    """

    key: bytes
    right_id: int
    copied: bytes
    back: bytes = b""

    @property
    def end(self) -> bytes:
        """Return the end of the subspace that begins at ``copied``."""
        return keys.after_prefix(self.copied)

    def has_copied(self, raw: bytes) -> bool:
        """Return whether a record is copied."""
        return raw < self.copied or (self.back != b"" and self.back <= raw < self.end)


_divisions: Final = msgspec.msgpack.Decoder(IndexDivision)
_spans: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


class QueueHalves:
    """The queues of a range that may split.

    Args:
        range_id: the id of the range.
        queues: its queues.

    Attributes:
        key: the key at which a split is prepared; ``None``: none is.
    """

    def __init__(self, range_id: int, queues: RangeQueues) -> None:
        self.key: bytes | None = None
        self._range_id = range_id
        self._queues = queues
        self._division = keys.record_key(range_id, "division")
        self._useless = keys.record_key(range_id, "useless")
        self._right_half = keys.record_key(range_id, RIGHT_HALF_RECORD)
        self._index = keys.record_key(range_id, INDEX_RECORD)

    def has_rest(self, stored: ValueReader) -> bool:
        """Return whether something useless is left to delete."""
        return stored.get(self._useless) is not None

    # --- steps

    def divide_some(self, ctx: Evaluation) -> bool:
        """Take a step of the deletion, else of the division; return whether there may be more.

        A division begins when all is deleted that an earlier one has left, and the preparation of
        the split is applied: copies are kept up from then on.
        """
        if ctx.get(self._useless) is not None:
            self._delete_some(ctx)
            return True
        prepared = decode_split(ctx.get(split_key(self._range_id)))
        if prepared is None or self.key is None:
            return prepared is not None
        index = _Index(self._range_id, index_in_use(ctx, self._range_id))
        division = self._divided(ctx)
        if division is None:
            if index.is_empty(ctx):
                return False
            division = IndexDivision(prepared.key, prepared.right_id, index.counters.lower)
            ctx.writes[self._right_half] = keys.u64(prepared.right_id)
        division = _walked(ctx, index, division)
        ctx.writes[self._division] = encode(division)
        return division.copied < index.records.upper

    def _divided(self, reader: ValueReader) -> IndexDivision | None:
        stored = reader.get(self._division)
        return None if stored is None else _divisions.decode(stored)

    def _delete_some(self, ctx: Evaluation) -> None:
        spans = _spans.decode(ctx.get(self._useless) or encode([]))
        left = COPIED_AT_ONCE
        while spans and left:
            (lower, upper), *others = spans
            found = [key for key, _ in islice(ctx.iterate(lower, upper), left)]
            ctx.writes.update(dict.fromkeys(found))
            ctx.grow(sum(map(len, found)))
            ctx.steps += len(found)
            left -= len(found)
            spans = [(found[-1] + b"\x00", upper), *others] if not left else others
        ctx.writes[self._useless] = encode(spans) if spans else None
        if not spans:
            ctx.writes[self._right_half] = None

    def follow(self, ctx: Evaluation) -> Iterator[None] | None:
        """Stage what a proposal, which is complete, changes in the copies.

        Return a generator if a turn has no room for all of it.
        """
        division = self._divided(ctx)
        if division is None:
            return None
        index = _index(self._range_id, index_in_use(ctx, self._range_id))
        copies = _Copies(ctx, index, division)
        before = division
        if self._division in ctx.staged:
            stored = ctx.get_stored(self._division)
            begin = IndexDivision(division.key, division.right_id, index.counters.lower)
            before = begin if stored is None else _divisions.decode(stored)
        following = copies.follow(before)
        return following if next(following, _OVER) is None else None

    # --- the end

    def must_wait(self) -> bool:
        """Return whether messages are about to be given back, which memory alone knows of."""
        return self._queues.gives_back() or self._queues.slots.has_just_taken()

    def give_up(self, ctx: Evaluation) -> None:
        """Stage the end of a division whose split is cancelled."""
        division = self._divided(ctx)
        if division is None:
            return
        other = _Index(self._range_id, index_in_use(ctx, self._range_id)).other
        right = _Index(division.right_id)
        useless = [*other.spans, *right.spans]
        ctx.writes |= {self._division: None, self._useless: encode(useless)}
        ctx.grow(256)

    def halve(self, ctx: Evaluation, right: RangeDescriptor) -> None:
        """Stage that each half has its copy.

        Raises:
            Unavailable: not everything is copied yet, or the last division has left something.
        """
        index = _Index(self._range_id, index_in_use(ctx, self._range_id))
        division = self._divided(ctx)
        has_left_some = ctx.get(self._useless) is not None
        if division is None and index.is_empty(ctx) and not has_left_some:
            self._halve_slots(ctx, None, right.range_id)
            return
        if division is None or has_left_some or division.copied < index.records.upper:
            raise Unavailable("the queues are not divided yet", retry_after=0.01)
        assert division.right_id == right.range_id
        self._halve_slots(ctx, index.other, right.range_id)
        ctx.writes |= {
            self._division: None, self._right_half: None, self._index: index.other.kind,
            self._useless: encode(list(index.spans)),
        }  # fmt: skip
        ctx.grow(256)
        ctx.after.append(lambda: self._hand_deadlines(index.other, _Index(right.range_id)))

    def _halve_slots(self, ctx: Evaluation, left: _Index | None, right_id: int) -> None:
        """Stage the slots of both halves.

        Args:
            left: the index of the left half; ``None``: no messages are stored.
        """
        right = _Index(right_id)

        def held(number: int) -> tuple[int, int]:
            indexes = () if left is None else (left, right)
            counts = [read_queue_counts(ctx.get(each.counters_of(number))) for each in indexes]
            return (counts[0].leased, counts[1].leased) if counts else (0, 0)

        self._queues.slots.halve(ctx, right_id, held, self._queues.limited())

    def _hand_deadlines(self, left: _Index, right: _Index) -> None:
        """Let the halves know how long leases last that this node has given: clocks may be set."""
        deadlines = dict(self._queues.deadlines())
        for index in left, right:
            own = {index.twin(raw): deadline for raw, deadline in deadlines.items()}
            self._queues.hand(index.range_id, own)

    def halved(self) -> None:
        """Have the queues begin with what stays."""
        self._queues.begin_again()


class _Step:
    """The records that one step copies.

    Args:
        ctx: the proposal of the step.
    """

    def __init__(self, ctx: Evaluation) -> None:
        self._ctx = ctx
        self._number = self._size = 0

    def is_full(self) -> bool:
        """Return whether the step copies no more."""
        return self._number >= COPIED_AT_ONCE or self._size >= COPIED_BYTES

    def take(self, raw: bytes, stored: bytes) -> None:
        """Count the steps and bytes of a record."""
        size = len(raw) + len(stored)
        self._number += 1
        self._size += size
        self._ctx.steps += 1 + size // BYTES_PER_STEP
        self._ctx.grow(size + len(raw))


def _walked(ctx: Evaluation, index: _Index, division: IndexDivision) -> IndexDivision:
    """Return the division after a step, which copies forwards, or a long subspace backwards."""
    step, copied = _Step(ctx), division.copied
    if _goes_backwards(copied):
        return _walked_backwards(ctx, step, division)
    for span in index.spans:
        for raw, stored in ctx.iterate(max(span.lower, copied), span.upper):
            if step.is_full() and unit_of(raw) == raw:  # a holding goes with its marks
                return msgspec.structs.replace(division, copied=_next_begin(ctx, copied, raw))
            step.take(raw, stored)
    return msgspec.structs.replace(division, copied=index.records.upper)


def _next_begin(ctx: Evaluation, copied: bytes, raw: bytes) -> bytes:
    """Return where the next step begins, if this one has room up to ``raw``.

    A long subspace that is copied backwards is left to the next step.
    """
    subspace = raw[: HEAD_BYTES + 1]
    if subspace <= copied or not _goes_backwards(subspace):
        return raw
    rest = islice(ctx.iterate(raw, keys.after_prefix(subspace)), COPIED_AT_ONCE)
    return subspace if sum(1 for _ in rest) == COPIED_AT_ONCE else raw


def _goes_backwards(copied: bytes) -> bool:
    """Return whether a key is the begin of a subspace whose first records are consumed first."""
    return len(copied) == HEAD_BYTES + 1 and copied[HEAD_BYTES:] in {keys.SCHEDULED, keys.READY}


def _walked_backwards(ctx: Evaluation, step: _Step, division: IndexDivision) -> IndexDivision:
    """Return the division after a step within a subspace, from its end."""
    back = division.back or division.end
    for raw, stored in ctx.iterate(division.copied, back, reverse=True):
        if step.is_full():
            return msgspec.structs.replace(division, back=back)
        step.take(raw, stored)
        back = raw
    return msgspec.structs.replace(division, copied=division.end, back=b"")


class _Index:
    """The engine keys of an index of queues, and of the counters beside it.

    Attributes:
        range_id: the id of its range.
        kind: its kind.
        counters, records: their spans. The counters come first.
    """

    def __init__(self, range_id: int, kind: bytes = keys.QUEUES) -> None:
        self.range_id = range_id
        self.kind = kind
        prefix = keys.queue_counters_prefix(range_id, kind)
        self.counters = keys.KeySpan(prefix, keys.after_prefix(prefix))
        self._head = keys.range_prefix(range_id) + kind
        first = keys.queue_prefix(range_id, 1, kind)
        self.records = keys.KeySpan(first, keys.after_prefix(self._head))

    @property
    def other(self) -> _Index:
        """Return the index of the range that takes turns with this one."""
        other = keys.OTHER_QUEUES if self.kind == keys.QUEUES else keys.QUEUES
        return _index(self.range_id, other)

    @property
    def spans(self) -> tuple[keys.KeySpan, keys.KeySpan]:
        """Return the spans, in order."""
        return self.counters, self.records

    def is_empty(self, ctx: Evaluation) -> bool:
        """Return whether nothing is stored."""
        return all(next(ctx.iterate(*span), None) is None for span in self.spans)

    def twin(self, raw: bytes) -> bytes:
        """Return the engine key at which this index has a record of another one."""
        return self._head + raw[len(self._head) :]

    def number_in(self, raw: bytes) -> int:
        """Return the number of the queue in the key of a record."""
        return int.from_bytes(raw[len(self._head) :][:4], "big")

    def counters_of(self, number: int) -> bytes:
        """Return the key of the counters of a queue."""
        return keys.queue_counters_key(self.range_id, number, self.kind)


@lru_cache(maxsize=64)
def _index(range_id: int, kind: bytes = keys.QUEUES) -> _Index:
    """Return an index. Each proposal asks for the same ones."""
    return _Index(range_id, kind)


class _Copies:
    """The copies of an index, as one proposal changes them.

    Args:
        ctx: the proposal, which is complete.
        index: the index in use.
        division: the division after the proposal.
    """

    def __init__(self, ctx: Evaluation, index: _Index, division: IndexDivision) -> None:
        self._ctx, self._index, self._division = ctx, index, division
        self._key = division.key
        self._left, self._right = index.other, _index(division.right_id)
        (first, first_end), (second, second_end) = index.spans
        self._changed = sorted(
            each for each in ctx.staged
            if second <= each < second_end or first <= each < first_end
        )  # fmt: skip
        self._before = _Applied(ctx)
        self._after = _Proposed(ctx, self._changed)
        self._more: dict[int, dict[str, int]] = {}

    def follow(self, before: IndexDivision) -> Iterator[None]:
        """Keep up what is copied, copy what the step has walked; yield after each turn's share.

        Args:
            before: the division before the proposal.
        """
        changed = [each for each in self._changed if before.has_copied(each)]
        first = bisect_left(changed, self._index.records.lower)
        self._note(changed[:first])
        for number, unit in enumerate(dict.fromkeys(map(unit_of, changed[first:])), 1):
            self._keep_up(unit)
            if not number % KEPT_UP_AT_ONCE:
                yield
        for lower, upper in self._walked(before):
            self._copy(lower, upper)
        self._count()

    def _walked(self, before: IndexDivision) -> list[tuple[bytes, bytes]]:
        """Return the spans in which the steps of the proposal have walked."""
        after = self._division
        if not before.back:
            spans = [(before.copied, after.copied)]
        elif before.copied == after.copied:
            return [(after.back, before.back)]
        else:
            spans = [(before.copied, before.back), (before.end, after.copied)]
        return [*spans, (after.back, after.end)] if after.back else spans

    def _keep_up(self, unit: bytes) -> None:
        """Change the copies of a record that was copied before."""
        before, after = self._before.get(unit), self._after.get(unit)
        if not is_undivided(unit):
            self._cut(unit, before, after)
            return
        if before is not None:
            self._put(unit, before, None, -1)
        if after is not None:
            self._put(unit, after, after, 1)

    def _copy(self, lower: bytes, upper: bytes) -> None:
        """Copy what the index has between two keys after the proposal."""
        counters, records = self._index.spans
        self._note(raw for raw, _ in self._read(counters, lower, upper))
        for raw, stored in self._read(records, lower, upper):
            if is_undivided(raw):
                self._put(raw, stored, stored, 1)
            elif unit_of(raw) == raw:
                self._cut(raw, None, stored)

    def _read(
        self, span: keys.KeySpan, lower: bytes, upper: bytes
    ) -> Iterable[tuple[bytes, bytes]]:
        """Return what a span has between two keys after the proposal."""
        lower, upper = max(span.lower, lower), min(span.upper, upper)
        return self._after.iterate(lower, upper) if lower < upper else ()

    def _note(self, counters: Iterable[bytes]) -> None:
        """Note the queues whose counters are copied, or changed."""
        prefix = len(self._index.counters.lower)
        for raw in counters:
            self._more.setdefault(int(raw[prefix:]), {})

    def _put(self, raw: bytes, record: bytes, stored: bytes | None, number: int) -> None:
        """Store the copy of an undivided record, or delete it (``None``, -1)."""
        if not goes_right(raw, record, self._key):
            self._ctx.staged[self._left.twin(raw)] = stored
            return
        self._ctx.staged[self._right.twin(raw)] = stored
        self._add(raw, COUNTERS.get(raw[HEAD_BYTES : HEAD_BYTES + 1], ""), number)

    def _cut(self, unit: bytes, was: bytes | None, stored: bytes | None) -> None:
        """Change the copies of a record that is divided."""
        before = NOTHING if was is None else cut(self._before, unit, was, self._key)
        after = cut(self._after, unit, stored, self._key)
        staged = self._ctx.staged
        if after.left != before.left:
            staged[self._left.twin(unit)] = after.left
        if after.right != before.right:
            staged[self._right.twin(unit)] = after.right
        for half, sign in ((before, -1), (after, 1)):
            self._add(unit, half.counter, sign * half.number)

    def _add(self, raw: bytes, counter: str, number: int) -> None:
        """Add a number of records to a counter of the right half, if one counts them."""
        if counter:
            more = self._more.setdefault(self._index.number_in(raw), {})
            more[counter] = more.get(counter, 0) + number

    def _count(self) -> None:
        """Write the counters of both copies, of each queue that has changed."""
        staged, after = self._ctx.staged, self._after
        for number, more in self._more.items():
            of_left, of_right = self._left.counters_of(number), self._right.counters_of(number)
            whole = after.get(self._index.counters_of(number))
            if whole is None:  # the queue was dropped, and is empty
                staged[of_left] = staged[of_right] = None
                continue
            stored = self._ctx.get(of_right)
            right = read_queue_counts(stored)
            if more or stored is None:
                right = grown(right, more)
                staged[of_right] = encode(right)
            try:
                staged[of_left] = encode(less(read_queue_counts(whole), right))
            except UNDECODABLE:
                staged[of_left] = whole


class _Applied:
    """The state before a proposal, as a reader."""

    def __init__(self, ctx: Evaluation) -> None:
        self.iterate, self.get = ctx.stored, ctx.get_stored


class _Proposed:
    """The state after a proposal, as a reader: also with what was staged at its end.

    Args:
        ctx: the proposal.
        changed: the engine keys that it has staged, sorted, as far as they are read.
    """

    def __init__(self, ctx: Evaluation, changed: list[bytes]) -> None:
        self.get = ctx.get
        self._ctx, self._changed = ctx, changed

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        changed, staged = self._changed, self._ctx.staged
        first = bisect_left(changed, lower)
        overlay = {key: staged[key] for key in changed[first : bisect_left(changed, upper, first)]}
        stored = self._ctx.stored(lower, upper, reverse=reverse)
        return merged(stored, overlay, reverse=reverse) if overlay else stored
