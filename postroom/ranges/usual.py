"""The port of the usual way, which makes most proposals of a range in one pass.

If something else joins a proposal, its commits are still evaluated in one pass. They become a batch
that the general way goes on with.

A range does not know messaging, and a usual proposal delivers messages: its evaluator lives above
(:mod:`postroom.messaging.usual`). It is given the parts of the replica that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.ranges.batch import Batch
from postroom.ranges.calls import Call, Proposal
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.garbage import GarbageLists
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.ports import Registry
from postroom.ranges.transactions.one_range import Committer


@dataclass(frozen=True, slots=True)
class UsualParts:
    """The parts of a replica that a usual proposal is made from.

    Attributes:
        cache: the applied state.
        clock: the clock, which gives commits their timestamps.
        registry: tells whether the range serves.
        committer: remembers the newest transactions of clients, and knows whether commits may have
            to wait.
        feed: the change feed.
        garbage: the lists of garbage.
        lease: the lease.
    """

    cache: Cache
    clock: HybridLogicalClock
    registry: Registry
    committer: Committer
    feed: ChangeFeed
    garbage: GarbageLists
    lease: LeaseHolder


class Share(msgspec.Struct, frozen=True, gc=False):
    """The part of a proposal that is for the calls of clients.

    Attributes:
        bytes: its size at which no more calls are taken.
        steps: the number of steps at which no more are taken.
        is_all: whether nothing else waits for a part.
    """

    bytes: int
    steps: int
    is_all: bool


class UsualWay(Protocol):
    """The maker of usual proposals."""

    def propose(
        self, calls: Iterator[Call], taken: list[Call], last_commit: int, share: Share
    ) -> Proposal | Batch | None:
        """Return the proposal of the calls, or ``None`` if the general way must make it.

        Args:
            calls: the waiting calls; those that a proposal has no room for are left.
            taken: the calls that were taken join it; the general way begins with them.
            last_commit: the timestamp of the last commit that is applied.
            share: the part of the proposal that is theirs.

        Returns:
            A batch of the evaluated calls, if the general way has to add something.
        """
