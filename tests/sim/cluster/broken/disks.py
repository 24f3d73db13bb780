"""Mutations of a store on a device without room."""

from __future__ import annotations

from postroom.kv.engine import EngineFailed
from postroom.kv.full_device import DeviceSpace
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.calls import Call
from tests.sim.cluster.broken import Patch


def full_disk_stops_the_store() -> Patch:
    """Take a full device for one that has failed."""

    def check_kept(self: DeviceSpace) -> None:
        if self.full:
            raise EngineFailed(self.full)

    return DeviceSpace, "check_kept", check_kept


def nobody_frees_room() -> Patch:
    """Refuse deletions like everything else."""

    def concerns(self: RefusedCalls, call: Call) -> bool:
        del self
        return call.urgent

    return RefusedCalls, "concerns", concerns


def full_for_ever() -> Patch:
    """Write the state never again, though there is room."""

    def open_again(self: DeviceSpace) -> bool:
        return not self.full

    return DeviceSpace, "open_again", open_again
