"""The joining of what several ranges have under one name, as one range would have it.

Ranges are halves of one that was split, and give their records names of their own from then on::

    counters            added up
    lists of ended      the halves of one, one after the other
    holdings            the same, without the marks behind them, which tell places in a half
    results             that of the newest message; the entries of all by their ends stay

Everything else of queues has a name that no other range uses. If other
records share a name, that of the first range is taken: it alone keeps it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

import msgspec

from postroom.backup.blocks import Entries
from postroom.client.routing.merges import summed
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging.counters import read_queue_counts
from postroom.messaging.image_entries import COUNTERS_NAME
from postroom.messaging.queues import records
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.requests import Counters

_DEFINITIONS: Final = keys.RANGE + keys.QUEUES + keys.u32(0)
_SUBSPACE_AT: Final = len(_DEFINITIONS)
_COUNTERS_OF_QUEUES: Final = keys.RANGE + keys.queue_counters_prefix(0)[9:]
_counters: Final = msgspec.msgpack.Decoder(Counters)


class RangeEntries:
    """The entries of no key of one range, as they are joined with those of others."""

    def __init__(self) -> None:
        self._holding: tuple[bytes, bytes] | None = None
        self._over: set[int] = set()

    def of(self, entries: Entries) -> Entries:
        """Return the entries of a page, but for a holding whose marks may follow."""
        found: list[tuple[bytes, bytes]] = []
        for name, stored in zip(*entries, strict=True):
            assert stored is not None
            if _subspace(name) == keys.LEASED and records.is_mark(name[_SUBSPACE_AT:]):
                self._over.update(records.marks.decode(stored))
                continue
            found += self._ended()
            if _subspace(name) == keys.LEASED:
                self._holding = name, stored
            else:
                found.append((name, stored))
        return _columns(found)

    def rest(self) -> Entries:
        """Return the holding that is left after the last page."""
        return _columns(self._ended())

    def _ended(self) -> list[tuple[bytes, bytes]]:
        """Return the last holding without the entries that are over, if there is one."""
        if self._holding is None:
            return []
        (name, stored), over = self._holding, self._over
        self._holding, self._over = None, set()
        if over:
            holding = records.holdings.decode(stored)
            left = [each for number, each in enumerate(holding.entries) if number not in over]
            stored = records.encode(msgspec.structs.replace(holding, entries=left))
        return [(name, stored)]


def joined(name: bytes, every: Sequence[bytes]) -> bytes:
    """Return the record of the store, from those of ranges.

    Raises:
        Invalid: these are no halves of one.
    """
    if len(every) == 1:
        return every[0]
    subspace = _subspace(name)
    if name == COUNTERS_NAME:
        return records.encode(summed(map(_counters.decode, every)))
    if name.startswith(_COUNTERS_OF_QUEUES):
        counted = (msgspec.structs.astuple(read_queue_counts(each)) for each in every)
        return records.encode(QueueCounts(*map(sum, zip(*counted, strict=True))))
    if subspace in _JOINS:
        return _JOINS[subspace](every)
    if subspace:
        raise _no_halves(subspace)
    return every[0]


def _joined_lists(every: Sequence[bytes]) -> bytes:
    return records.encode([*chain(*map(records.ended_lists.decode, every))])


def _joined_holding(every: Sequence[bytes]) -> bytes:
    halves = [*map(records.holdings.decode, every)]
    whole = msgspec.structs.replace(
        halves[0], entries=[*chain.from_iterable(each.entries for each in halves)]
    )
    if any(msgspec.structs.replace(each, entries=whole.entries) != whole for each in halves):
        raise _no_halves(keys.LEASED)
    return records.encode(whole)


def _newest_result(every: Sequence[bytes]) -> bytes:
    return max(every, key=lambda each: records.results.decode(each).seq)


_JOINS: Final[dict[bytes, Callable[[Sequence[bytes]], bytes]]] = {
    keys.DONE: _joined_lists,
    keys.ARCHIVED: _joined_lists,
    keys.LEASED: _joined_holding,
    keys.RESULTS: _newest_result,
}


def _no_halves(subspace: bytes) -> Invalid:
    return Invalid(
        f"two ranges have records of a queue under one name, in subspace {subspace.hex()}; "
        "nothing was copied: stop all nodes, and copy their folders"
    )


def _subspace(name: bytes) -> bytes:
    """Return the subspace of an entry of a queue; empty: it belongs to no queue's index."""
    is_of_queue = name[:2] == _DEFINITIONS[:2] and not name.startswith(_DEFINITIONS)
    return name[_SUBSPACE_AT : _SUBSPACE_AT + 1] if is_of_queue else b""


def _columns(found: list[tuple[bytes, bytes]]) -> Entries:
    return [name for name, _ in found], [stored for _, stored in found]
