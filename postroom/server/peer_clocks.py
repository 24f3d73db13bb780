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
stays the same until that clock is set.

::

    this node    sent ──────────────▶ ┐      ┌ ───────▶ came
                                      │      │
    the peer                    heard at ──▶ sent, with its clock, and with the answer

The clock of a frame that came is one that the peer has passed: it shows the least offset. The
answer to a frame that this node has sent shows the greatest one. The best bounds of the last
seconds count, and the middle between them is the offset (RFC 5905, section 8). Its error is half of
the time that both frames were under way at most, and nothing if they took the same time. This holds
on a machine so busy that all frames are late. Bounds that exclude each other tell that the peer's
clock was set.

An answer names the wall clock that the frame had carried. If this node's clock was set meanwhile,
it names a moment that is long past or in the future, and is not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from postroom.kv.clock import TimeSource
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.raft.interface import NodeId
from postroom.raft.messages import Clocks

RECENT_SECONDS: Final = 5
GONE_SECONDS: Final = 60.0
"""The silence after which a peer has no say."""
PEERS_MIN: Final = 2
"""The least number of peers that can judge: a single one cannot, unless a clock has jumped."""
_APART_MILLISECONDS: Final = CLOCK_OFFSET_SECONDS_MAX * 1000
_ROUNDING_MILLISECONDS: Final = 2
_NEVER: Final = float("-inf")


class _Bound:
    """The best bound of an offset that each of the last seconds has shown.

    Args:
        best: the function that tells the better one of bounds: ``max`` or ``min``.
    """

    __slots__ = ("_best", "_seconds")

    def __init__(self, best: Callable[..., float]) -> None:
        self._best = best
        self._seconds: deque[list[float]] = deque(maxlen=RECENT_SECONDS)

    def note(self, now: float, offset: float) -> None:
        """Note a bound, in milliseconds."""
        second = now // 1
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] = self._best(self._seconds[-1][1], offset)
        else:
            self._seconds.append([second, offset])

    def recent(self, now: float) -> float | None:
        """Return the best bound of the last seconds, if there is one."""
        since = now // 1 - RECENT_SECONDS
        shown = [offset for second, offset in self._seconds if second > since]
        return self._best(shown) if shown else None

    def clear(self) -> None:
        """Forget all bounds."""
        self._seconds.clear()


class _Peer:
    """The record of the wall clock of a peer.

    Attributes:
        stamp: the wall clock that its last frame told, in milliseconds.
        heard_at, answered_at: when its last frame came, and its last answer that was of use.
    """

    __slots__ = ("_greatest", "_least", "answered_at", "heard_at", "stamp")

    def __init__(self) -> None:
        self._least, self._greatest = _Bound(max), _Bound(min)
        self.stamp = 0
        self.heard_at = self.answered_at = _NEVER

    def note(self, now: float, least: float, greatest: float | None) -> bool:
        """Note the bounds that a frame shows; return whether they are news."""
        is_news = greatest is not None and now - self.answered_at > RECENT_SECONDS
        if self._was_set(now, least, greatest):
            self._least.clear()
            self._greatest.clear()
            is_news = True
        self.heard_at = now
        self._least.note(now, least)
        if greatest is not None:
            self.answered_at = now
            self._greatest.note(now, greatest)
        return is_news

    def _was_set(self, now: float, least: float, greatest: float | None) -> bool:
        """Return whether bounds exclude the earlier ones: they count no more."""
        known_greatest, known_least = self._greatest.recent(now), self._least.recent(now)
        if known_greatest is not None and least > known_greatest + _APART_MILLISECONDS:
            return True
        return (
            greatest is not None
            and known_least is not None
            and greatest < known_least - _APART_MILLISECONDS
        )

    def offset(self, now: float) -> float | None:
        """Return its offset, in milliseconds, if its last seconds have shown both bounds."""
        least, greatest = self._least.recent(now), self._greatest.recent(now)
        return None if least is None or greatest is None else (least + greatest) / 2


class PeerClocks:
    """The offsets of the peers' wall clocks.

    Args:
        clock: this machine's.
    """

    def __init__(self, clock: TimeSource) -> None:
        """Create a record without readings."""
        self._wall, self._monotonic = clock.wall_milliseconds, clock.monotonic
        self._peers: dict[NodeId, _Peer] = {}

    def clocks_for(self, peer: NodeId) -> Clocks:
        """Return what a frame to a peer tells about wall clocks."""
        own, known = self._wall(), self._peers.get(peer)
        if known is None:
            return Clocks(own)
        ago = (self._monotonic() - known.heard_at) * 1000  # the wall clock may have been set
        return Clocks(own, known.stamp, max(own - round(ago), 0))

    def heard(self, peer: NodeId, clocks: Clocks) -> bool:
        """Note what a frame that came in tells; return whether it is news."""
        now = self._monotonic()
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Peer()
        known.stamp = clocks.own
        greatest = None
        took = self._wall() - clocks.heard
        if -_ROUNDING_MILLISECONDS <= took <= RECENT_SECONDS * 1000:
            greatest = clocks.heard_at - now * 1000 + took
        return known.note(now, clocks.own - now * 1000, greatest)

    def offset_seconds(self) -> float:
        """Return how far this node's clock is ahead of those of most others; 0 if none is heard."""
        offsets = self._offsets()
        return (self._own() - median(offsets)) / 1000 if offsets else 0.0

    def offsets_by_peer(self) -> dict[NodeId, float]:
        """Return how many seconds this node's clock is ahead of that of each peer heard lately."""
        now, own = self._monotonic(), self._own()
        return {
            peer: (own - offset) / 1000
            for peer, known in self._peers.items()
            if (offset := known.offset(now)) is not None
        }

    def is_alone(self) -> bool:
        """Return whether the others agree that this node's clock is wrong."""
        return _contradicted(self._own(), self._offsets())

    def judge(self, before: float, own: float, since: float | None) -> float:
        """Return the offset to go by (:class:`postroom.kv.clock.WallClockJudge`)."""
        if since is None:
            offsets = self._offsets()
            return median(offsets) if _contradicted(own, offsets) else own
        heard = self._offsets(since)
        if _contradicted(own, heard):
            return median(heard)
        if not heard:  # a peer will say something, or all of them are gone
            silent_since = self._monotonic() - RECENT_SECONDS - GONE_SECONDS
            is_known = any(each.answered_at >= silent_since for each in self._peers.values())
            return before if is_known else own
        against = sum(abs(each - before) < abs(each - own) for each in heard)
        return before if against > len(heard) - against else own

    def _own(self) -> float:
        """Return the offset of this node's own clock, in milliseconds."""
        return self._wall() - self._monotonic() * 1000

    def _offsets(self, since: float = _NEVER) -> list[float]:
        """Return the offsets of the peers that have answered lately, and since a moment."""
        now = self._monotonic()
        offsets = (each.offset(now) for each in self._peers.values() if each.answered_at >= since)
        return [each for each in offsets if each is not None]


def _contradicted(own: float, offsets: list[float]) -> bool:
    """Return whether two clocks at least agree among themselves, and none with this one."""
    return (
        len(offsets) >= PEERS_MIN
        and max(offsets) - min(offsets) < _APART_MILLISECONDS
        and min(abs(own - each) for each in offsets) > _APART_MILLISECONDS
    )
