"""The comparison of a node's wall clock with those of the others.

Nothing is lost by a wrong clock (:mod:`postroom.ranges.lease`), but users see its effects. A
leader whose clock is an hour ahead stamps commits an hour ahead, and delivers scheduled messages
early. Every frame therefore carries its sender's wall clock, unadjusted, and the others use it to
judge whether a clock is to be trusted (:mod:`postroom.kv.clock`):

* A clock is wrong if two nodes at least contradict it and agree among themselves: they tell
  the time. If it is the leader's clock, the leader also hands over.
* A clock that has jumped is compared with the peers heard since. If more of them stand where it
  would be without the jump, it goes on from there with the monotonic clock.

This node keeps each peer's *offset*: the peer's wall clock less this node's monotonic one, which
stays the same until that clock is set. A reading is old by the time that its frame was under way,
which makes others seem to be behind. The recent reading of a peer counts that shows it furthest
ahead.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from postroom.kv.clock import TimeSource
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.raft.interface import NodeId

RECENT_SECONDS: Final = 5.0
GONE_SECONDS: Final = 60.0
"""The silence after which a peer has no say."""
READINGS_KEPT: Final = 64
PEERS_MIN: Final = 2
"""The least number of peers that can judge: a single one cannot, unless a clock has jumped."""
_APART_MILLISECONDS: Final = CLOCK_OFFSET_SECONDS_MAX * 1000


class PeerClocks:
    """The offsets of the peers' wall clocks.

    Args:
        clock: this machine's.
    """

    def __init__(self, clock: TimeSource) -> None:
        """Create a record without readings."""
        self._wall, self._monotonic = clock.wall_milliseconds, clock.monotonic
        self._readings: dict[NodeId, deque[tuple[float, float]]] = {}

    def heard(self, peer: NodeId, wall_milliseconds: int) -> bool:
        """Note the reading of a frame that came in; return whether it is new."""
        now = self._monotonic()
        readings = self._readings.setdefault(peer, deque(maxlen=READINGS_KEPT))
        offset = wall_milliseconds - now * 1000
        is_news = not readings or abs(offset - readings[-1][1]) > _APART_MILLISECONDS
        if is_news:
            readings.clear()  # its clock was set: earlier readings count no more
        readings.append((now, offset))
        return is_news

    def offset_seconds(self) -> float:
        """Return how far this node's clock is ahead of those of most others; 0 if none is heard."""
        now = self._monotonic()
        offsets = self._offsets(now - RECENT_SECONDS)
        return (self._wall() - now * 1000 - median(offsets)) / 1000 if offsets else 0.0

    def offsets_by_peer(self) -> dict[NodeId, float]:
        """Return how many seconds this node's clock is ahead of that of each peer heard lately."""
        now = self._monotonic()
        own, since = self._wall() - now * 1000, now - RECENT_SECONDS
        return {
            peer: (own - max(recent)) / 1000
            for peer, readings in self._readings.items()
            if (recent := [offset for at, offset in readings if at >= since])
        }

    def is_alone(self) -> bool:
        """Return whether the others agree that this node's clock is wrong."""
        now = self._monotonic()
        return _contradicted(self._wall() - now * 1000, self._offsets(now - RECENT_SECONDS))

    def judge(self, before: float, own: float, since: float | None) -> float:
        """Return the offset to go by (:class:`postroom.kv.clock.WallClockJudge`)."""
        recent = self._monotonic() - RECENT_SECONDS
        offsets = self._offsets(recent)
        if since is None:
            return median(offsets) if _contradicted(own, offsets) else own
        heard = self._offsets(max(since, recent))
        if _contradicted(own, heard):
            return median(heard)
        if not heard:  # a peer will say something, or all of them are gone
            return before if self._offsets(recent - GONE_SECONDS) else own
        against = sum(abs(each - before) < abs(each - own) for each in heard)
        return before if against > len(heard) - against else own

    def _offsets(self, since: float) -> list[float]:
        recent = [
            [offset for at, offset in each if at >= since] for each in self._readings.values()
        ]
        return [max(each) for each in recent if each]


def _contradicted(own: float, offsets: list[float]) -> bool:
    """Return whether two clocks at least agree among themselves, and none with this one."""
    return (
        len(offsets) >= PEERS_MIN
        and max(offsets) - min(offsets) < _APART_MILLISECONDS
        and min(abs(own - each) for each in offsets) > _APART_MILLISECONDS
    )
