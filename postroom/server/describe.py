"""The description of a node without asking others, for ``status`` and the health check.

Mapped files are read again from the disk when the system wants their memory for something else.
Other processes can have that memory; a limit must be compared with the process's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from postroom.raft.interface import NodeId
from postroom.ranges.nodes import NodeStatus, PeerStatus, ServiceStatus, StorageStatus
from postroom.server.assembly import NodeOptions
from postroom.server.disk_guard import Damage, GuardedNode
from postroom.server.hosted_range import HostedRange
from postroom.server.opening import StoreRecord
from postroom.server.replicas import Replicas
from postroom.version import VERSION

_STATUS: Final = Path("/proc/self/status")
_OWN: Final = ("RssAnon",)
_MAPPED: Final = ("RssFile", "RssShmem")
"""The names of mapped memory. Files in memory file systems count as shared memory."""


class ProcessMemory(NamedTuple):
    """The memory of a process, in bytes; 0: this system does not tell."""

    own_bytes: int = 0
    mapped_bytes: int = 0


def process_memory() -> ProcessMemory:
    """Return the memory of this process, read from Linux's process file system."""
    told: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in _OWN + _MAPPED:
                told[name] = int(value.split()[0]) * 1024
    return ProcessMemory(*(sum(told.get(name, 0) for name in names) for names in (_OWN, _MAPPED)))


LEADER: Final = "leader"
FOLLOWER: Final = "follower"
LEARNER: Final = "learner"
OUTSIDER: Final = "outsider"


class DescribedNode(GuardedNode, Protocol):
    """The parts of a node that its description is made of."""

    options: NodeOptions
    store: StoreRecord
    damage: Damage
    certificate: str

    @property
    def replicas(self) -> Replicas:
        """Return its ranges."""

    @property
    def root(self) -> HostedRange:
        """Return the range with the records of which the store has one each."""

    @property
    def node_id(self) -> int:
        """Return its id."""

    @property
    def serves(self) -> bool:
        """Return whether it answers clients."""

    @property
    def refused(self) -> str:
        """Return why it refuses writes; empty: it does not."""

    @property
    def link_error(self) -> Callable[[NodeId], str]:
        """Return what tells why there is no connection to a node."""

    def clock_offset_seconds(self) -> float:
        """Return how far its clock is ahead of those of most others."""


def describe(node: DescribedNode) -> NodeStatus:
    """Return the present state of ``node``; leader, term and indices are those of the root."""
    group, known, ranges = node.root.group, node.nodes, node.replicas.hosted.values()
    mine = None if known is None else known.by_id(node.node_id)
    # A node that is alone renews its lease only when it is asked for something.
    has_services = node.serves or any(each.services.running for each in ranges)
    return NodeStatus(
        node.node_id,
        "" if mine is None else mine.address,
        _role(node),
        int(group.leader or 0),
        group.term,
        group.applied_index,
        group.last_index,
        node.serves,
        _peers(node) if group.is_leader else (),
        node.engine.disk_bytes(),
        node.engine.free_bytes(),
        node.clock_offset_seconds(),
        node.damage.found,
        service_status(ranges) if has_services else (),
        VERSION,
        storage_status(node),
        node.certificate,
        node.refused,
        len(ranges),
        sum(each.group.is_leader for each in ranges),
        node.store.cluster_id,
    )


def service_status(ranges: Iterable[HostedRange]) -> tuple[ServiceStatus, ...]:
    """Return the status of each service, those of all ranges together."""
    by_name: dict[str, ServiceStatus] = {}
    for each in ranges:
        for status in each.services.status():
            before = by_name.get(status.name)
            by_name[status.name] = status if before is None else _both(before, status)
    return tuple(by_name.values())


def _both(one: ServiceStatus, other: ServiceStatus) -> ServiceStatus:
    return ServiceStatus(
        one.name, one.running or other.running, one.failures + other.failures,
        one.trouble or other.trouble, one.note or other.note,
    )  # fmt: skip


def storage_status(node: DescribedNode) -> StorageStatus:
    """Return the sizes of the storage of ``node``."""
    return StorageStatus(*node.engine.table_files(), node.options.memory_bytes, *process_memory())


def _role(node: DescribedNode) -> str:
    group = node.root.group
    if group.is_leader:
        return LEADER
    if node.node_id in group.members:
        return FOLLOWER
    return LEARNER if node.node_id in group.learners else OUTSIDER


def _peers(node: DescribedNode) -> tuple[PeerStatus, ...]:
    return tuple(
        PeerStatus(
            int(peer),
            each.match_index,
            each.silent_seconds,
            each.snapshot_under_way,
            node.link_error(peer),
        )
        for peer, each in sorted(node.root.group.progress().items())
    )
