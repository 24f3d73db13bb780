"""The options of a node when it starts."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from postroom.limits import DISK_RESERVE_BYTES, GC_TTL_SECONDS, MEMORY_BYTES
from postroom.raft.options import RaftOptions
from postroom.ranges.lease import LEASE_SECONDS

GENERAL_ONLY: Final = "POSTROOM_GENERAL_ONLY"
"""The environment variable that turns off the usual way of proposals, to look for a fault."""


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node when it starts.

    Attributes:
        members: the members of a new group; none if this node is to be added to one.
        sync: whether writes are synced before they count.
        lease_seconds: how long the others wait for a leaseholder that has gone.
        memory_bytes: the budget of memory that its storage has too (:mod:`postroom.kv.budget`).
        rests_alone: whether a node that is alone writes nothing, its lease included, before the
            first write of a client or a service.
        is_general_only: whether all proposals are made in the general way
            (:mod:`postroom.messaging.usual`).
    """

    node_id: int = 1
    members: tuple[int, ...] = (1,)
    sync: bool = True
    lease_seconds: float = LEASE_SECONDS
    raft: RaftOptions | None = None
    sync_interval_seconds: float | None = None
    gc_ttl_seconds: float = GC_TTL_SECONDS
    gc_interval_seconds: float = 5.0
    poll_seconds: float = 5.0
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
    memory_bytes: int = MEMORY_BYTES
    rests_alone: bool = False
    is_general_only: bool = msgspec.field(
        default_factory=lambda: os.environ.get(GENERAL_ONLY, "") not in ("", "0")
    )


__all__ = ["NodeOptions"]
