"""The parts of a commit: what of it lies in the anchor's range, and in each of the others.

::

    CommitTransaction ─┬─ own part: reads, writes, and all that it sends   (the anchor's range)
                       ├─ Prepare: reads, writes                           (another range)
                       └─ ...

Spans are cut at the ends of ranges, and so are a ``DeleteRange`` and writes about many messages
(``adds_up``), whose answers are added up. Another write that concerns several keys must lie in one
range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from postroom.errors import Invalid, TransactionTooLarge
from postroom.limits import PREPARED_RECORD_BYTES_MAX
from postroom.ranges.bounds import Bounds
from postroom.ranges.carrier import Recipient
from postroom.ranges.contract import KeySet, Write
from postroom.ranges.requests import CommitTransaction, DeleteRange

Span: TypeAlias = tuple[bytes, bytes | None]
Finding: TypeAlias = Callable[[bytes], Recipient]


class Part:
    """The part of a commit in one range.

    Attributes:
        recipient: the range.
        reads, spans, writes: what it reads and writes there.
        numbers: the numbers of the writes in the whole commit.
    """

    __slots__ = ("numbers", "reads", "recipient", "spans", "writes")

    def __init__(self, recipient: Recipient) -> None:
        self.recipient = recipient
        self.reads: list[bytes] = []
        self.spans: list[Span] = []
        self.writes: list[Any] = []
        self.numbers: list[int] = []


class Division:
    """The division of a commit into parts.

    Args:
        request: the commit.
        bounds: the bounds of the anchor's range.
        find: a function that returns the range of a key.

    Attributes:
        own: the part in the anchor's range; ``generation``: the generation of that.
        others: the other parts.

    Raises:
        Invalid: a write lies in several ranges, and cannot be cut.
    """

    def __init__(self, request: CommitTransaction[Any], bounds: Bounds, find: Finding) -> None:
        self._bounds, self._find = bounds, find
        descriptor = bounds.descriptor
        self.own = Part(Recipient(descriptor.range_id, bounds.start, bounds.end))
        self.generation = descriptor.generation
        self._parts: dict[Recipient, Part] = {self.own.recipient: self.own}
        for key in request.reads:
            self._of(key).reads.append(key)
        for span in request.spans:
            for part, piece in self._cut(span):
                part.spans.append(piece)
        for number, write in enumerate(request.writes):
            self._add(number, write)
        self.others = [part for part in self._parts.values() if part is not self.own]

    def _of(self, key: bytes) -> Part:
        """Return the part in the range of a key."""
        if self._bounds.contains(key):
            return self.own
        recipient = self._find(key)
        part = self._parts.get(recipient)
        if part is None:
            part = self._parts[recipient] = Part(recipient)
        return part

    def _cut(self, span: Span) -> Iterator[tuple[Part, Span]]:
        """Cut a span at the ends of ranges."""
        start: bytes | None = span[0]
        while start is not None and (span[1] is None or start < span[1]):
            part = self._of(start)
            end = part.recipient.end
            is_last = end is None or (span[1] is not None and span[1] <= end)
            yield part, (start, span[1] if is_last else end)
            start = None if is_last else end

    def _add(self, number: int, write: Write) -> None:
        participates = write.participates()
        single = write.single_keys() if participates else None
        if single is not None and len(single) == 1:  # usually
            part = self._of(single[0])
            part.writes.append(write)
            part.numbers.append(number)
            return
        concern = write.concerns()
        if not participates or not isinstance(concern, KeySet):
            pieces: list[tuple[Part, Write]] = [(self.own, write)]
        elif type(write) is DeleteRange:
            pieces = [
                (part, msgspec.structs.replace(write, start=start, end=end))
                for part, (start, end) in self._cut((write.start, write.end))
            ] or [(self.own, write)]
            if write.part_of is not None and [part for part, _ in pieces] != [self.own]:
                raise _in_several_ranges(write)
        else:
            found = {id(part): part for part in map(self._of, concern.keys)}
            found |= {id(part): part for span in concern.spans for part, _ in self._cut(span)}
            if len(found) > 1 and not write.adds_up:
                raise _in_several_ranges(write)
            pieces = [(part, write) for part in found.values()]
            if len(found) > 1:
                pieces = [(part, self._within(write, concern, part)) for part, _ in pieces]
        for part, piece in pieces:
            part.writes.append(piece)
            part.numbers.append(number)

    def _within(self, write: Write, concern: KeySet, part: Part) -> Write:
        """Return what of a write is about keys in the range of a part."""
        return write.narrowed(KeySet(tuple(key for key in concern.keys if self._of(key) is part)))


def merged(number_of_writes: int, parts: list[tuple[Part, list[Any]]]) -> list[Any]:
    """Return the answers of all writes of a commit; no answer: ``[]``.

    Args:
        number_of_writes: how many there are.
        parts: the parts, with the answers of their writes.
    """
    merged: list[Any] = [None] * number_of_writes
    tells = False
    for part, answers in parts:
        for number, answer in zip(part.numbers, answers, strict=False):
            if answer is None:
                continue
            tells = True
            before = merged[number]
            merged[number] = answer if before is None else before + answer
    return merged if tells else []


def too_large_part() -> TransactionTooLarge:
    """Return the error of a transaction that has a too large part in another range."""
    return TransactionTooLarge(
        "the transaction has read, and writes, too much in another range than that of its first "
        f"key, the limit is {PREPARED_RECORD_BYTES_MAX:,} bytes; nothing was changed: do the work "
        "in smaller transactions"
    )


def _in_several_ranges(write: Write) -> Invalid:
    return Invalid(
        f"a {type(write).__name__} concerns keys of several ranges; nothing was changed: defer it "
        "(tx.enqueue_update), or give each range its own"
    )
