"""The ranges that come to a node: by a split, or from other nodes.

*By a split.* A node that applies it begins the right half (:meth:`.IncomingRanges.begin`). The
records of its group join the write set that has its state. When that is written, the range is
hosted::

    an entry of the left half is applied ─▶ begin ─▶ one write ─▶ hosted: it votes, or campaigns

*From other nodes.* A leader speaks for a range that this node does not have, or a candidate asks
for a vote::

    heard ── for a second ──▶ a replica that holds nothing ── snapshot ──▶ a replica with a state
      │                           │   └──────────── a split here ───────────▶
      └───────── silence ─────────┴──▶ forgotten, but for its vote

Mostly the split that makes the range is just not applied here yet. Nothing is lost by dropping the
messages meanwhile, but a candidate would wait for a vote. The last request of each candidate is
therefore kept. A replica that holds nothing does not campaign, and takes only a snapshot, if no
other range here has keys of it.

It votes: it has acknowledged nothing that it could have forgotten. A node that took the left half
of a split by a snapshot has no right half yet, and may be needed to elect a leader there. A replica
that was destroyed has forgotten something. Only the words of a leader bring it back.

A peer may name any number of ranges, by mistake or on purpose. Only members of the cluster are
heard, and replicas are made only for ids that were given out. At most ``RANGES_PER_PEER`` of the
ranges that each of them names are kept in mind at a time, replicas that hold nothing included. One
is forgotten after ``SILENT_SECONDS``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from postroom.kv.engine import WriteSet
from postroom.raft.consensus import Consensus
from postroom.raft.interface import NodeId
from postroom.raft.membership import Members
from postroom.raft.messages import Append, Chunk, Message, PreVote, Vote
from postroom.ranges.descriptor import RangeDescriptor, decode_descriptor
from postroom.ranges.replica import Replica
from postroom.server.assembly import Observer
from postroom.server.departing_ranges import DepartingRanges
from postroom.server.hosted_range import HostedRange
from postroom.server.replicas import Replicas

RANGES_PER_PEER: Final = 256
PATIENCE_SECONDS: Final = 1.0
"""The time for which a range is wanted here before this node makes a replica for it."""
SILENT_SECONDS: Final = 10.0

NONE_SHORTER: Final[Mapping[int, RangeDescriptor]] = MappingProxyType({})
"""No range has become shorter."""

_log = logging.getLogger(__name__)


class ReceivingNode(Protocol):
    """The node, as ranges come to it."""

    consensus: Consensus
    departing: DepartingRanges

    @property
    def monotonic(self) -> Callable[[], float]:
        """Return the source of seconds that never go back."""

    @property
    def replicas(self) -> Replicas:
        """Return its ranges."""

    def is_in_cluster(self, node_id: NodeId) -> bool:
        """Return whether a node is one of the cluster, as far as this one knows."""

    def is_given_out(self, range_id: int) -> bool:
        """Return whether this node knows that the id of a range was given out."""

    def host_range(
        self,
        range_id: int,
        members: Sequence[NodeId],
        shorter: Mapping[int, RangeDescriptor] = NONE_SHORTER,
    ) -> HostedRange:
        """Begin to have a range, between two turns."""

    def wake(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""


class _UnknownRange:
    """A range that this node does not have.

    Attributes:
        sender: the node that named it first.
        wanted_since: when a leader has spoken for it first, or a candidate has asked for a vote
            that may be given here; ``None``: neither has happened.
        heard_at: when a message for it has come last.
        asking: the last request for a vote of each candidate.
    """

    __slots__ = ("asking", "heard_at", "sender", "wanted_since")

    def __init__(self, sender: NodeId) -> None:
        self.sender = sender
        self.wanted_since: float | None = None
        self.heard_at = 0.0
        self.asking: dict[NodeId, PreVote | Vote] = {}


class IncomingRanges:
    """The ranges that come to one node; see the module.

    Attributes:
        is_applying: whether entries are being applied: their writes are not done yet.
        has_news: whether ranges have begun or have other bounds, which counts once it is written.
    """

    def __init__(self, node: ReceivingNode) -> None:
        self.is_applying = self.has_news = False
        self._node = node
        self._unknown: dict[int, _UnknownRange] = {}
        self._named: dict[NodeId, int] = {}
        self._begun: list[tuple[int, Replica]] = []
        self._bounds_changed: list[tuple[int, bytes | None, Observer]] = []

    # --- by a split

    def begin(
        self,
        left_id: int,
        descriptor: RangeDescriptor,
        members: tuple[NodeId, ...],
        staged: WriteSet,
    ) -> bool:
        """Begin a range with the state that the entry being applied writes.

        Args:
            left_id: the range that is split. It may have come by a snapshot in this very turn, and
                have no keys yet by the map of spans.
            descriptor: the range, whose keys still belong to the range that is split.
            members: its first voters, equal at all of them.
            staged: the write set with the state.

        Returns:
            False: an earlier replica of it was destroyed here, so the state is not wanted.
        """
        range_id, node = descriptor.range_id, self._node
        if not node.consensus.stage_beginning(range_id, Members(members), left_id, staged):
            return False
        self._begun.append((range_id, node.replicas.by_id(left_id)))
        self.has_news = True
        return True

    def change_bounds(self, range_id: int, stored: bytes | None, observe: Observer) -> None:
        """Have a range take the bounds of a descriptor, once that is written."""
        self._bounds_changed.append((range_id, stored, observe))
        self.has_news = True
        if not self.is_applying:
            self.written()

    def written(self) -> None:
        """Host the ranges that have begun, and shorten the others, since all that is written.

        Requests go to a range that begins before the other one refuses them.
        """
        begun, self._begun = self._begun, []
        # A node that lags may apply several splits of a range at once: the last bounds count.
        changed = {
            range_id: (stored, observe) for range_id, stored, observe in self._bounds_changed
        }
        self._bounds_changed, self.has_news = [], False
        replicas = self._node.replicas
        shorter = {each: decode_descriptor(stored, each) for each, (stored, _) in changed.items()}
        for range_id, left in begun:
            if range_id in replicas.hosted:  # it held nothing, and its group is closed
                replicas.remove(range_id)
            hosted = self._node.host_range(range_id, (), shorter)
            if left.group.is_leader:
                hosted.group.hurry()
            self._deliver_requests(hosted)
            self._node.wake(urgent=True)
        for range_id, (stored, observe) in changed.items():
            observe(stored)
            replicas.follow(range_id)

    def _deliver_requests(self, hosted: HostedRange) -> None:
        """Deliver the requests for votes that came before a range had begun."""
        known = self._unknown.get(hosted.range_id)
        if known is not None:
            for sender, message in known.asking.items():
                hosted.group.deliver(sender, message)
            self._forget(hosted.range_id)

    # --- from other nodes

    def hear(self, range_id: int, sender: NodeId, message: Message) -> None:
        """Take note of a message for a range that this node does not have."""
        if not isinstance(message, (Append, Chunk, PreVote, Vote)):
            return
        known = self._unknown.get(range_id)
        if known is None:
            if not self._node.is_in_cluster(sender) or not self._has_room(sender):
                return
            known = self._unknown[range_id] = _UnknownRange(sender)
            self._named[sender] = self._named.get(sender, 0) + 1
        known.heard_at = self._node.monotonic()
        if isinstance(message, (PreVote, Vote)):
            if not self._node.is_in_cluster(sender):
                return
            known.asking[sender] = message
            if self._node.departing.has_destroyed(range_id):
                return
        if known.wanted_since is None and self._node.is_given_out(range_id):
            known.wanted_since = known.heard_at

    def _has_room(self, sender: NodeId) -> bool:
        return self._named.get(sender, 0) < RANGES_PER_PEER

    def look(self) -> None:
        """Make the replicas that are due, and forget those of which nothing is heard."""
        now = self._node.monotonic()
        for range_id, known in list(self._unknown.items()):
            hosted = self._node.replicas.hosted.get(range_id)
            if hosted is None:
                if now - known.heard_at >= SILENT_SECONDS:
                    self._forget(range_id)
                elif (
                    known.wanted_since is not None and now - known.wanted_since >= PATIENCE_SECONDS
                ):
                    known.wanted_since = None  # if it goes, it comes back only if it is wanted
                    self._node.host_range(range_id, ())
            elif not hosted.group.holds_nothing:
                self._forget(range_id)
            elif now - max(known.heard_at, hosted.group.needed_at) >= SILENT_SECONDS:
                _log.info("range %d is forgotten: nothing is heard of it", range_id)
                self._node.departing.forget(range_id)
                self._forget(range_id)

    def expect(self, range_id: int) -> None:
        """Expect messages for a replica that holds nothing, and is here from an earlier life."""
        known = self._unknown[range_id] = _UnknownRange(0)
        known.heard_at = self._node.monotonic()

    def _forget(self, range_id: int) -> None:
        sender = self._unknown.pop(range_id).sender
        left = self._named.pop(sender, 0) - 1
        if left > 0:
            self._named[sender] = left
