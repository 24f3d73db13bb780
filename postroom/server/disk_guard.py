"""Guards the disk of a node: hands over, and refuses writes, before it fills up or when it rots.

What is told of the free space is :mod:`.disk_reserve`, what is remembered of damage :mod:`.damage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroom.kv.engine import BlockDamaged, EngineFailed
from postroom.server.damage import Damage
from postroom.server.disk_reserve import DiskReserve
from postroom.server.store import stopped_by
from postroom.server.turn_writer import TurnWriter

if TYPE_CHECKING:
    from postroom.server.node import Node

ROOM_CHECK_SECONDS: Final = 0.05
"""How often the device's free room is looked at: far less than the reserve is written meanwhile."""


class DiskGuard:
    """See the module.

    Args:
        node: whose disk.
        damage: what is known to be damaged.
        writer: writes to the disk, perhaps in another thread.
        reserve_bytes: writes are refused when less is free.
    """

    def __init__(self, node: Node, damage: Damage, writer: TurnWriter, reserve_bytes: int) -> None:
        self._node = node
        self._writer = writer
        self._damage = damage
        self._reserve = DiskReserve(reserve_bytes)
        self._look_at = node.monotonic()

    def look(self) -> None:
        """Refuse writes in time: a device that fills up in the middle of one stops the store."""
        node, now = self._node, self._node.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + ROOM_CHECK_SECONDS
        try:
            free = node.engine.free_bytes()
        except OSError:  # its folder is not where it was, say: whoever writes finds out more
            return
        refusal = self._reserve.refusal(free)
        node.replicas.refuse(refusal)
        if node.nodes is not None:  # of an embedded store, the callers are told
            self._reserve.tell(free, now)
        if refusal is not None and len(node.group.members) > 1:
            node.hand_over()

    def on_damage(self, error: BlockDamaged) -> bool:
        """Some of the data cannot be read; whether another node is to serve instead."""
        node = self._node
        if len(node.group.members) < 2:
            return False
        try:
            with self._writer.one_write_at_a_time:
                is_new = self._damage.note(error)
        except EngineFailed as failure:
            self._writer.fails_with(stopped_by(failure))
            return True
        if is_new:
            node.group.step_aside()
            node.hand_over()
        return True
