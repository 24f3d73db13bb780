"""Where a span of keys can be cut into parts of about the same size, without reading it.

The engine can tell about how many bytes a span of engine keys takes. A cut is found by bisection
between the first and the last key: over windows of eight bytes behind what both have in common, so
that each question halves what is left, and into the next eight bytes where one window was not
enough. The cut then moves to the next user key that is there: what belongs to a key stays together.

Sizes are estimates: of tables the engine's own, of what is in no table yet after a sample of the
last writes (:mod:`postroom.kv.memtable_sample`). A cut that is off makes parts uneven; nothing else
depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from postroom.kv import keys
from postroom.kv.engine import Engine
from postroom.limits import PARTITION_BYTES_MIN, PARTITIONS_MAX

_WINDOW: Final = 8
_WINDOWS: Final = 4
_STEPS_A_QUESTION: Final = 8

Sizes = Callable[[bytes], int]
"""About how many bytes lie before an engine key."""


def cuts(engine: Engine, span: keys.KeySpan, part_bytes: int) -> Iterator[bytes | int]:
    """User keys at which the span can be cut, in order; between them, the number of steps that it
    took to find the next one.
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
        # What lies beside a key belongs to it: the cut is before the key, or before the next one.
        key = keys.user_key(found[0])
        if key > before:
            before = key
            yield key


def _bisect(size: Sizes, first: bytes, last: bytes, target: int, close_enough: int) -> bytes:
    """An engine key before which about ``target`` bytes lie."""
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
    """What both begin with."""
    for index, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:index]
    return min(first, last, key=len)


def _window(key: bytes, prefix: bytes) -> int:
    window = key[len(prefix) : len(prefix) + _WINDOW]
    return min(int.from_bytes(window.ljust(_WINDOW, b"\x00"), "big"), (1 << 8 * _WINDOW) - 2)
