"""Replicas of a range that have applied the same entries hold the same, to the last byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from postroom.kv import keys
from postroom.kv.memory import SortedMap
from postroom.raft.snapshots import ArrivingSnapshot
from postroom.raft.tombstones import read_tombstone
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import read_descriptor
from postroom.ranges.state import APPLIED_RECORD, decode_applied
from tests.messaging.queues.division import check_copies
from tests.sim import checkers, store_rules
from tests.sim.checkers import Content, engine_spans, ranges_on, require

if TYPE_CHECKING:
    from tests.sim.cluster.machine import Machine

CHECKERS: Final = tuple(each for each in checkers.CHECKERS if each is not checkers.check_clock)
"""A replica stores timestamps of other nodes' clocks: they need not be below its own ceiling."""


def applied_index(disk: SortedMap, range_id: int = ROOT_ID) -> int:
    """Return the index of the last entry of a range whose effects a disk holds."""
    stored = disk.get(keys.record_key(range_id, APPLIED_RECORD))
    return 0 if stored is None else decode_applied(stored).index


def is_installing(disk: SortedMap, range_id: int = ROOT_ID) -> bool:
    """Return whether a snapshot is replacing the range, which must not be read then."""
    prefix = keys.raft_log_prefix(range_id)
    stored = disk.get(prefix + b"s")
    if stored is not None and msgspec.msgpack.decode(stored, type=ArrivingSnapshot).chunks > 0:
        return True
    tombstone = read_tombstone(disk, prefix)
    return tombstone is not None and bool(tombstone.clears)


def look(machines: Iterable[Machine]) -> Content | None:
    """Compare those disks that have come equally far; check that each range is in order.

    Returns:
        What the disks hold that have come farthest, all ranges together.
    """
    contents = look_at_ranges(machines)
    return store_rules.joined(contents) if contents else None


def look_at_ranges(machines: Iterable[Machine]) -> list[Content]:
    """Look at each range; return what the disks hold of it that have come farthest."""
    found = {machine.name: machine.disk.content for machine in machines}
    range_ids = sorted({each for disk in found.values() for each in ranges_on(disk)})
    contents = []
    for range_id in range_ids:
        holding = {
            name: disk
            for name, disk in found.items()
            if range_id in ranges_on(disk) and not is_installing(disk, range_id)
        }
        content = _look_at(range_id, holding)
        if content is not None:
            contents.append(content)
    return contents


def _look_at(range_id: int, found: dict[str, SortedMap]) -> Content | None:
    by_index: dict[int, tuple[str, SortedMap]] = {}
    for name, disk in found.items():
        index = applied_index(disk, range_id)
        known_name, other = by_index.setdefault(index, (name, disk))
        require_equal(known_name, other, name, disk, range_id)
    content: Content | None = None
    for index in sorted(by_index):
        content = checkers.read_content(by_index[index][1], range_id)
        check_copies(by_index[index][1], range_id)
        for checker in CHECKERS:
            checker(content)
    return content


def require_equal(
    name: str, one: SortedMap, other_name: str, other: SortedMap, range_id: int = ROOT_ID
) -> None:
    """Raise ``Broken``, with the first difference, unless two disks hold the same range."""
    if one is other:
        return
    mine, theirs = (
        [
            pair
            for span in engine_spans(read_descriptor(disk, range_id))
            for pair in disk.iterate(*span)
        ]
        for disk in (one, other)
    )
    if mine != theirs:
        where = sorted(set(mine) ^ set(theirs))[:4]
        index = applied_index(one, range_id)
        require(False, f"{name} and {other_name} differ at entry {index}: {where}")
