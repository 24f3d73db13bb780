"""The guard of a node's disk: it hands over, and refuses writes, when the disk fills up or rots.

::

    free ──────────────────────────────────────────────────────────────────────────────▶ 0
         all writes   │ writes that free room, upkeep │ those that free room │ the same, into memory
                      reserve + working               reserve / 4            full
                                                    + working

*Working* bytes are the room that flushes and compactions of the stored data may need. They are
taken for a time and given back. Writes that free room may use them, too: a flush or a compaction
that finds no room stops nothing, since the state stays in memory then. A leader can refuse in time;
a follower writes the leader's proposals for as long as it can.

Each change is logged once. Free space that goes up and down around the limit counts as one change.

A block of a table file that does not match its checksum stays as it is; the log and the other
members have its contents. A member of a group therefore hands over and never leads again. It votes,
acknowledges and feeds its log, which is sound, until its disk is replaced like a lost one. A record
of the damage keeps it from leading after a restart.

A store without other members goes on serving the data that it can read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.kv.engine import BlockDamaged, Engine, EngineFailed
from postroom.limits import DAMAGE_CHARACTERS_MAX
from postroom.raft.group import RaftGroup
from postroom.raft.replication import PeerProgress
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.nodes import Nodes
from postroom.server.opening import stopped_by
from postroom.server.turn_writer import TurnWriter

DAMAGE_KEY: Final = keys.store_key("damage")

_log = logging.getLogger(__name__)


class Damage:
    """The known damage of a node's disk.

    Args:
        engine: the disk.

    Attributes:
        found: the data that cannot be read, for people; empty: no damage is known.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.found = (engine.get(DAMAGE_KEY) or b"").decode(errors="replace")

    def note(self, error: Exception) -> bool:
        """Remember ``error``, also after a restart; return false if damage was known already.

        Raises:
            EngineFailed: the record cannot be written.
        """
        if self.found:
            return False
        self.found = str(error)[:DAMAGE_CHARACTERS_MAX]
        _log.error("this node does not lead any more: replace its disk: %s", self.found)
        self._engine.write({DAMAGE_KEY: self.found.encode()}, sync=True)
        return True


STEADY_SECONDS: Final = 5.0
"""The time for which free space must stay above the reserve before that is logged."""

UPKEEP_SHARE: Final = 4


class Space(NamedTuple):
    """The room of a device.

    Attributes:
        free_bytes: the bytes that are free for this process.
        working_bytes: the part of them that the engine may need at most to go on with its data.
        full: why the state cannot be written; empty: it can.
        takes_deletions: whether a full device can still take writes that free room.
    """

    free_bytes: int
    working_bytes: int = 0
    full: str = ""
    takes_deletions: bool = True


class DiskReserve:
    """The reserve on a node's device; see the module.

    Args:
        reserve_bytes: writes are refused when less is free beside the working bytes; 0: they are
            refused only when the device is full.
    """

    def __init__(self, reserve_bytes: int) -> None:
        self.reserve_bytes = reserve_bytes
        self._is_told = self._is_full_told = False
        self._scarce_at = 0.0

    def _wanted(self, space: Space) -> int:
        return self.reserve_bytes + space.working_bytes if self.reserve_bytes else 0

    def is_near(self, space: Space, near_bytes: int) -> bool:
        """Return whether writes would be refused with ``near_bytes`` less room."""
        return bool(space.full) or space.free_bytes < self._wanted(space) + near_bytes

    def refusal(self, space: Space) -> RefusedCalls | None:
        """Return the writes that are refused and the error for them, or ``None`` for no refusal."""
        free, working, wanted = space.free_bytes, space.working_bytes, self._wanted(space)
        if space.full:
            left = "deletions and acknowledgements" if space.takes_deletions else "nothing"
            return RefusedCalls(
                Unavailable(
                    "the device where the store lies is full: data can be read, and "
                    f"{left} written; nothing was changed: free some space on it, then try again",
                    retry_after=1.0,
                ),
                upkeep=True, deletions=not space.takes_deletions,
                everything=not space.takes_deletions,
            )  # fmt: skip
        if free >= wanted:
            return None
        return RefusedCalls(
            Unavailable(
                f"only {free} bytes are free where the store lies, {wanted} are kept in reserve "
                "(deletions and acknowledgements may use some of it); nothing was changed: free "
                "some space, or delete something and wait until it is collected, then try again",
                retry_after=1.0,
            ),
            upkeep=free < working + self.reserve_bytes // UPKEEP_SHARE,
        )

    def tell(self, space: Space, now: float) -> None:
        """Log that free space has fallen below the reserve, or is above it again."""
        free, wanted = space.free_bytes, self._wanted(space)
        if free < wanted:
            self._scarce_at = now
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "only %d bytes are free where the store lies, %d are kept in reserve: this "
                    "node takes no writes of clients but deletions and acknowledgements, and ends "
                    "if it cannot write what a leader sends; free some space", free, wanted,
                )  # fmt: skip
        elif self._is_told and now - self._scarce_at >= STEADY_SECONDS:
            self._is_told = False
            _log.warning(
                "%d bytes are free again where the store lies, %d are kept in reserve: writes are "
                "accepted", free, wanted,
            )  # fmt: skip

    def tell_full(self, full: str) -> None:
        """Log that the device is full, or has room again."""
        if full and not self._is_full_told:
            _log.error("the device is full, and the store can only be read: %s", full)
        elif not full and self._is_full_told:
            _log.warning("the device has room again: the store is written again")
        self._is_full_told = bool(full)


ROOM_CHECK_SECONDS: Final = 0.05
"""The time between looks at the free room: far less than the reserve is written meanwhile."""

NEAR_BYTES: Final = 64 * 1024 * 1024
"""The room, beside the reserve, below which each turn looks: a full device would stop the node."""

MEASURE_SECONDS: Final = 1.0
"""The time between measurements of the bytes that the engine needs to go on."""

STEP_SHARE: Final = 8
"""The part of the reserve whose loss since the last measurement causes another one at once."""

TRY_SECONDS_FIRST: Final = 1.0
TRY_SECONDS_LAST: Final = 60.0
"""The longest pause before a full device is tried again, if it has half of the needed room."""

LOG_BYTES: Final = 2 * 1024 * 1024
"""The room, or a part of the reserve, below which only the log is written, not the state."""
LOG_SHARE: Final = 16

COMPACT_SECONDS: Final = 60.0
"""The shortest time between compactions of deleted data while there is hardly any room."""

HAND_OVER_SECONDS_FIRST: Final = 30.0
HAND_OVER_SECONDS_LAST: Final = 900.0
"""The longest pause before a leader without room hands over again: others may have none, either."""


class GuardedReplicas(Protocol):
    """The replicas of a node, as the guard of its disk sees them."""

    def refuse(self, refusal: RefusedCalls | None) -> None:
        """Refuse some requests from now on; ``None``: none."""

    def start_anew(self) -> None:
        """Drop all memory kept for clients, as after a change of leader, and serve again."""


class GuardedNode(Protocol):
    """The parts of a node that the guard of its disk uses."""

    engine: Engine
    nodes: Nodes | None

    @property
    def replicas(self) -> GuardedReplicas:
        """Return the replicas of its ranges."""

    def groups(self) -> Iterable[RaftGroup]:
        """Return the consensus groups of its ranges."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def hand_over(self) -> object:
        """Give all leases and leads away."""


class DiskGuard:
    """The guard of one node's disk; see the module.

    Args:
        node: the node.
        damage: the known damage.
        writer: writes to the disk, perhaps in another thread.
        reserve_bytes: writes are refused when less is free.

    Attributes:
        refused: why writes are refused; empty: they are not.
        look_at: when it looks next, on the monotonic clock.
    """

    def __init__(
        self, node: GuardedNode, damage: Damage, writer: TurnWriter, reserve_bytes: int
    ) -> None:
        self._node = node
        self._writer = writer
        self._damage = damage
        self._reserve = DiskReserve(reserve_bytes)
        self.change_reserve(reserve_bytes)
        self._compacted_at = node.monotonic()
        self.refused = ""
        self.look_at = self._measure_at = self._hand_over_at = self._try_at = node.monotonic()
        self._try_pause = TRY_SECONDS_FIRST
        self._pause = HAND_OVER_SECONDS_FIRST
        self._measured = Space(0)

    def change_reserve(self, reserve_bytes: int) -> None:
        """Refuse writes from now on when less is free."""
        self._reserve.reserve_bytes = reserve_bytes
        self._log_bytes = min(LOG_BYTES, reserve_bytes // LOG_SHARE)
        self._step_bytes = reserve_bytes // STEP_SHARE

    def look(self) -> None:
        """Refuse writes in time: a device that fills up in the middle of one stops the store."""
        node, now = self._node, self._node.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + ROOM_CHECK_SECONDS
        try:
            space = self._space(now)
        except OSError:  # its folder is gone, say: the next write finds out more
            return
        if self._reserve.is_near(space, NEAR_BYTES):
            self.look_at = now
        refusal = self._reserve.refusal(space)
        if refusal is not None and not self.refused and self._writer.storage is not None:
            self._writer.storage.space.make_spare(space.free_bytes)
        self.refused = "" if refusal is None else str(refusal.error)
        node.replicas.refuse(refusal)
        self._reserve.tell_full(space.full)
        if node.nodes is not None:  # the callers of an embedded store are told
            self._reserve.tell(space, now)
        self._compact(now)
        self._hand_over(now)

    def _space(self, now: float) -> Space:
        """Return how much room there is. Write a full device again where there is enough."""
        node, storage = self._node, self._writer.storage
        free, before = node.engine.free_bytes(), self._measured
        if storage is not None and free < self._log_bytes:
            storage.space.keep_in_memory(free)
        full = storage is not None and bool(storage.space.full)
        if now >= self._measure_at or before.free_bytes - free > self._step_bytes:
            self._measure_at = now + MEASURE_SECONDS
            before = self._measured = Space(free, node.engine.working_bytes())
        working = before.working_bytes
        if storage is not None and full and now >= self._try_at and free > self._log_bytes + max(
            working // 2, 2 * storage.space.kept_bytes()
        ):  # fmt: skip
            self._try_at = now + self._try_pause
            self._try_pause = min(2 * self._try_pause, TRY_SECONDS_LAST)
            self._open_again()
        space = Space(free, working)
        if storage is None or not storage.space.full:
            if not self.refused:
                self._try_pause = TRY_SECONDS_FIRST
            return space
        return space._replace(
            full=storage.space.full, takes_deletions=storage.space.takes_deletions()
        )

    def _open_again(self) -> None:
        """Have the state written again. Clients lose their locks and claims, as with the lease."""
        node, storage = self._node, self._writer.storage
        assert storage is not None
        if any(each.snapshot_under_way for group in node.groups() for each in _progress(group)):
            return  # the snapshot is read from the engine
        node.replicas.start_anew()
        try:
            with self._writer.one_write_at_a_time:
                storage.open_again()
        except EngineFailed as failure:
            self._writer.fails_with(stopped_by(failure))

    def _compact(self, now: float) -> None:
        """Have the engine free deleted data, now and then while room is scarce."""
        storage = self._writer.storage
        if storage is None or not self.refused:
            self._compacted_at = now
        elif now >= self._compacted_at + COMPACT_SECONDS:
            self._compacted_at = now
            storage.space.compact()

    def _hand_over(self, now: float) -> None:
        """Have another node lead if there is no room here; rarely, if no node has any."""
        if not self.refused:
            self._pause, self._hand_over_at = HAND_OVER_SECONDS_FIRST, now
        elif now >= self._hand_over_at and any(map(_has_others, self._node.groups())):
            self._hand_over_at = now + self._pause
            self._pause = min(2 * self._pause, HAND_OVER_SECONDS_LAST)
            self._node.hand_over()

    def on_damage(self, error: BlockDamaged, group: RaftGroup) -> bool:
        """Note that some data is unreadable; return whether another node is to serve instead.

        This node is then to lead no range any more that has other members.

        Args:
            error: the damage.
            group: the group of the range that was read.
        """
        node = self._node
        if not _has_others(group):
            return False
        try:
            with self._writer.one_write_at_a_time:
                is_new = self._damage.note(error)
        except EngineFailed as failure:
            self._writer.fails_with(stopped_by(failure))
            return True
        if is_new:
            for each in node.groups():
                each.step_aside()
            node.hand_over()
        return True


def _has_others(group: RaftGroup) -> bool:
    """Return whether another node could lead a group."""
    return len(group.members) > 1


def _progress(group: RaftGroup) -> Iterable[PeerProgress]:
    return group.progress().values()
