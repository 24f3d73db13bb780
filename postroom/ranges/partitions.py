"""The parts of a span of keys: cuts at about the same size, found without reading the keys.

The engine can tell about how many bytes a span of engine keys takes. A cut is found by bisection
between the first and the last key: over windows of eight bytes behind what both have in common.
Each question halves the rest, and the search goes on in the next eight bytes where one window was
not enough. The cut then moves to the next user key that is there: the records of a key stay
together.

Sizes are estimates. Those of tables are the engine's own. Those of writes that are in no table yet
follow from a sample of the last writes (:mod:`postroom.kv.span_size`). A cut that is off
makes parts uneven; nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import ClassVar, Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Engine
from postroom.limits import PARTITION_BYTES_MIN, PARTITIONS_MAX
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ConcernsSpan, Read
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry
from postroom.ranges.protections import PositionRecords
from postroom.ranges.requests import Bound, Count
from postroom.ranges.rights import Verb

# --- answers --------------------------------------------------------------------------------------


class RangePartition(msgspec.Struct, frozen=True, array_like=True):
    """A part of a span, within one range.

    Attributes:
        start, end: the bounds of its keys; ``end=None`` is unbounded.
        range_id: the id of the range.
        generation: the generation of the range, which rises with each split and merge. The later
            owner of a key has the higher one.
        size_bytes: the number of bytes on the device, as far as it is known.
        readable_from: the timestamp up to which changes, and overwritten versions, are collected,
            or cannot be protected any more.
    """

    start: bytes
    end: bytes | None
    range_id: int
    generation: int
    size_bytes: int
    readable_from: int


# --- requests -------------------------------------------------------------------------------------


class ReadPartitions(ConcernsSpan, Read, frozen=True, tag="read_partitions"):
    """A request to divide ``[start, end)`` into parts of about ``part_bytes``.

    Each part lies within one range.
    """

    answer: ClassVar = list[RangePartition]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    start: Bound
    end: Bound | None
    part_bytes: Count


_WINDOW: Final = 8
_WINDOWS: Final = 4
_STEPS_A_QUESTION: Final = 8

Sizes = Callable[[bytes], int]
"""A function that returns about how many bytes lie before an engine key."""


class Partitions:
    """The evaluator of ``ReadPartitions``.

    Args:
        engine: the engine of the node.
        positions: the positions of readers.
        bounds: the bounds of the range.
    """

    def __init__(self, engine: Engine, positions: PositionRecords, bounds: Bounds) -> None:
        self._engine = engine
        self._positions = positions
        self._bounds = bounds

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ReadPartitions] = self.read

    def read(
        self, view: View, request: ReadPartitions
    ) -> Generator[None, None, list[RangePartition]]:
        """Evaluate ``ReadPartitions``, over as many turns as it takes."""
        span = keys.data_span(request.start, request.end)
        found: list[bytes] = []
        for cut in cuts(self._engine, span, request.part_bytes):
            if isinstance(cut, bytes):
                found.append(cut)
                continue
            view.steps += cut
            if view.is_used_up():
                yield
        starts = [request.start, *found][:PARTITIONS_MAX]
        ends: list[bytes | None] = [*starts[1:], request.end]
        readable_from = self._positions.readable_from(view)
        return [self._part(*part, readable_from) for part in zip(starts, ends, strict=True)]

    def _part(self, start: bytes, end: bytes | None, readable_from: int) -> RangePartition:
        size = self._engine.approximate_bytes(*keys.data_span(start, end))
        own = self._bounds.descriptor
        return RangePartition(start, end, own.range_id, own.generation, size, readable_from)


def cuts(engine: Engine, span: keys.KeySpan, part_bytes: int) -> Iterator[bytes | int]:
    """Iterate over the user keys at which the span can be cut, in order.

    Before each of them comes the number of steps that it took to find it.
    """
    lower, upper = span
    first = next(iter(engine.iterate(lower, upper)), None)
    last = next(iter(engine.iterate(lower, upper, reverse=True)), None)
    if first is None or last is None or first[0] == last[0]:
        return
    total = engine.approximate_bytes(lower, upper)
    parts = min(total // max(part_bytes, PARTITION_BYTES_MIN), PARTITIONS_MAX)
    before = keys.user_key(first[0])
    for number in range(1, parts):
        asked = 0

        def size(key: bytes) -> int:
            nonlocal asked
            asked += 1
            return engine.approximate_bytes(lower, key)

        raw = _bisect(size, first[0], last[0], total * number // parts, total // parts // 8)
        yield asked * _STEPS_A_QUESTION
        found = next(iter(engine.iterate(raw, upper)), None)
        if found is None:
            return
        # The records beside a key belong to it: the cut is before the key, or before the next one.
        key = keys.user_key(found[0])
        if key > before:
            before = key
            yield key


def _bisect(size: Sizes, first: bytes, last: bytes, target: int, close_enough: int) -> bytes:
    """Return an engine key before which about ``target`` bytes lie."""
    prefix = _in_common(first, last)
    low, high = _window(first, prefix), _window(last, prefix) + 1
    for _ in range(_WINDOWS):
        while high - low > 1:
            middle = (low + high) // 2
            before = size(prefix + middle.to_bytes(_WINDOW, "big"))
            if abs(before - target) <= close_enough:
                return prefix + middle.to_bytes(_WINDOW, "big")
            if before < target:
                low = middle
            else:
                high = middle
        prefix += low.to_bytes(_WINDOW, "big")
        low, high = 0, 1 << 8 * _WINDOW
    return prefix


def _in_common(first: bytes, last: bytes) -> bytes:
    """Return the longest prefix of both keys."""
    for index, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:index]
    return min(first, last, key=len)


def _window(key: bytes, prefix: bytes) -> int:
    window = key[len(prefix) : len(prefix) + _WINDOW]
    return min(int.from_bytes(window.ljust(_WINDOW, b"\x00"), "big"), (1 << 8 * _WINDOW) - 2)
