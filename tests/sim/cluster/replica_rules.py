"""Replicas that have applied the same entries hold the same, to the last byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from postroom.kv import keys
from postroom.kv.memory import SortedMap
from postroom.raft.snapshots import ArrivingSnapshot
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.state import APPLIED_RECORD, decode_applied
from tests.sim import checkers
from tests.sim.checkers import require

if TYPE_CHECKING:
    from tests.sim.cluster.machine import Machine

_APPLIED: Final = keys.record_key(ROOT_ID, APPLIED_RECORD)
_SPOOL: Final = keys.raft_log_prefix(ROOT_ID) + b"s"

CHECKERS: Final = tuple(each for each in checkers.CHECKERS if each is not checkers.check_clock)
"""A replica stores timestamps of other nodes' clocks: they need not be below its own ceiling."""


def applied_index(disk: SortedMap) -> int:
    """Return the index of the last entry whose effects a disk holds."""
    stored = disk.get(_APPLIED)
    return 0 if stored is None else decode_applied(stored).index


def is_installing(disk: SortedMap) -> bool:
    """Return whether a snapshot is replacing the range, which must not be read then."""
    stored = disk.get(_SPOOL)
    return stored is not None and msgspec.msgpack.decode(stored, type=ArrivingSnapshot).chunks > 0


def look(machines: Iterable[Machine]) -> checkers.Content | None:
    """Compare those disks that have come equally far; check that each state is in order.

    Returns:
        What the disk holds that has come farthest.
    """
    by_index: dict[int, tuple[str, SortedMap]] = {}
    for machine in machines:
        disk = machine.disk.content
        if is_installing(disk):
            continue
        index = applied_index(disk)
        name, other = by_index.setdefault(index, (machine.name, disk))
        require_equal(name, other, machine.name, disk)
    if not by_index:
        return None
    content: checkers.Content | None = None
    for index in sorted(by_index):
        content = checkers.read_content(by_index[index][1])
        for checker in CHECKERS:
            checker(content)
    return content


def require_equal(name: str, one: SortedMap, other_name: str, other: SortedMap) -> None:
    """Raise ``Broken``, with the first difference, unless two disks hold the same range."""
    if one is other:
        return
    mine = list(one.iterate(keys.RANGE, keys.DATA_END))
    theirs = list(other.iterate(keys.RANGE, keys.DATA_END))
    if mine != theirs:
        where = sorted(set(mine) ^ set(theirs))[:4]
        index = applied_index(one)
        require(False, f"{name} and {other_name} differ at entry {index}: {where}")
