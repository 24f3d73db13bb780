"""How a node's wall clock compares with those of the others.

Correctness does not depend on it (:mod:`postroom.ranges.lease`), but what users see does: a leader
whose clock is an hour ahead stamps commits an hour ahead, and delivers scheduled messages early. So
every frame tells its sender's reading, and a leader that finds itself alone against all others, who
agree among themselves, hands over.

A reading is old by the time that its frame was under way, so that others seem to be behind; of the
recent readings of a peer the one counts that shows it furthest ahead.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.raft.state_machine import NodeId

RECENT_SECONDS: Final = 5.0
READINGS_KEPT: Final = 64
PEERS_MIN: Final = 2
"""With a single peer nobody can tell whose clock is wrong."""


class PeerClocks:
    """The offsets of the peers' clocks to this node's."""

    def __init__(self) -> None:
        """Nothing has been heard."""
        self._readings: dict[NodeId, deque[tuple[float, float]]] = {}

    def heard(self, peer: NodeId, ahead_seconds: float, now: float) -> None:
        """A frame came in by whose reading the clock of ``peer`` is ahead of this node's.

        Args:
            peer: who sent it.
            ahead_seconds: by how much; negative: behind.
            now: the monotonic clock.
        """
        readings = self._readings.setdefault(peer, deque(maxlen=READINGS_KEPT))
        readings.append((now, ahead_seconds))

    def offset_seconds(self, now: float) -> float:
        """How far this node's clock is ahead of those of most others; 0 if none is heard."""
        ahead = self._ahead(now)
        return -median(ahead) if ahead else 0.0

    def is_alone(self, now: float) -> bool:
        """Whether the others agree that this node's clock is wrong."""
        ahead = self._ahead(now)
        return (
            len(ahead) >= PEERS_MIN
            and max(ahead) - min(ahead) < CLOCK_OFFSET_SECONDS_MAX
            and min(abs(each) for each in ahead) > CLOCK_OFFSET_SECONDS_MAX
        )

    def _ahead(self, now: float) -> list[float]:
        since = now - RECENT_SECONDS
        recent = [
            [ahead for at, ahead in readings if at >= since] for readings in self._readings.values()
        ]
        return [max(each) for each in recent if each]
