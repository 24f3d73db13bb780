"""Broken on purpose: what a store does on a device without room."""

from __future__ import annotations

from postroom.kv.engine import EngineFailed
from postroom.kv.room import Room
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.calls import Call
from tests.sim.cluster.broken import Patch


def full_disk_stops_the_store() -> Patch:
    """A full device is taken for one that has failed."""

    def check_kept(self: Room) -> None:
        if self.full:
            raise EngineFailed(self.full)

    return Room, "check_kept", check_kept


def nobody_frees_room() -> Patch:
    """Deletions are refused like everything else."""

    def concerns(self: RefusedCalls, call: Call) -> bool:
        del self
        return call.urgent

    return RefusedCalls, "concerns", concerns


def full_for_ever() -> Patch:
    """The state is never written again, though there is room."""

    def open_again(self: Room) -> bool:
        return not self.full

    return Room, "open_again", open_again
