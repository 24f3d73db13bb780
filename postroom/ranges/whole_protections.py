"""Timestamps that are protected as a whole in all ranges, shortly before they have come.

Each range takes its snapshot of the engine between two proposals, before the timestamp, and passes
its clock over that. All that it had committed is below, and all that follows is above::

    client ── Now ─▶ present ── BeStill(present + 5 ms) ─▶ all ranges
                                  └── ProtectWhole(same) ─┬─▶ range 1: snapshot ─ clock passes
                                                          └─▶ range 2: snapshot ─ clock passes

Messages between ranges, and transactions over several, make the clock of each range that they reach
pass over their own. The snapshots therefore are a consistent cut (Mattern, Virtual Time and Global
States of Distributed Systems, 1989): no range has an effect whose cause another one lacks.

A transaction that is under way in several ranges may commit below the timestamp. The ranges
therefore wait until those have ended, and let no other one begin before it. This is a pause of
about two rounds, and commits have as much time after it (:mod:`.ranges_of_node`). If a range has
committed something above it, the request is refused, and its client chooses a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv.clock import HybridLogicalClock, from_seconds
from postroom.limits import WHOLE_AHEAD_SECONDS_MAX
from postroom.ranges.contract import ConcernsStore, Read, on_everything
from postroom.ranges.evaluation import Blocked, View
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.ports import Registry
from postroom.ranges.protections import Protections
from postroom.ranges.requests import TimestampNumber
from postroom.ranges.rights import Need, Verb


class ProtectWhole(ConcernsStore, Read, frozen=True, tag="protect_whole", repr_omit_defaults=True):
    """A request to keep what is stored at a timestamp to come, with versions or without.

    The answer is the timestamp. Versions need a ``Protect`` beside it.

    Attributes:
        at: the timestamp, at or above which no range has committed yet.
        client, host: the owner. The node that serves the client sets them, whatever they are. Both
            empty: the node's own process.
    """

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = ()
    changes_holdings: ClassVar = True
    meets_intents: ClassVar = False

    at: TimestampNumber
    client: bytes = b""
    host: str = ""

    def needs(self) -> Iterator[Need]:
        """Yield the right to read everything."""
        yield on_everything(Verb.READ)


class BeStill(ConcernsStore, Read, frozen=True, tag="be_still"):
    """A request to let no commit over several ranges begin before a timestamp to come.

    The answer, which is the timestamp, comes when none is under way.

    Attributes:
        at: the timestamp.
    """

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = ()
    meets_intents: ClassVar = False

    at: TimestampNumber

    def needs(self) -> Iterator[Need]:
        """Yield the right to read everything."""
        yield on_everything(Verb.READ)


class ReleaseWhole(ConcernsStore, Read, frozen=True, tag="release_whole", repr_omit_defaults=True):
    """A request to give back what ``ProtectWhole`` has taken.

    Attributes:
        at: the timestamp.
    """

    answer: ClassVar = None
    since: ClassVar = 2
    verbs: ClassVar = ()
    meets_intents: ClassVar = False
    is_served_in_restore: ClassVar = True

    at: TimestampNumber


@dataclass(eq=False)
class WholeProtections:
    """The evaluators of these requests at one range.

    Attributes:
        range_id: the id of the range.
        reads: the reads of the range.
        protections: its protections.
        clock: the clock of the node.
        monotonic: returns seconds that never go back.
        is_committing: returns whether a commit over several ranges is under way from here.
        look: has the reads that wait for proposals look again.
    """

    range_id: int
    reads: LocalReads
    protections: Protections
    clock: HybridLogicalClock
    monotonic: Callable[[], float]
    is_committing: Callable[[], bool]
    look: Callable[[], None]

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.reads[BeStill] = self.be_still
        registry.reads[ProtectWhole] = self.protect
        registry.reads[ReleaseWhole] = self.release
        self.protections.of_node[self.range_id] = self

    def be_still(self, view: View, request: BeStill) -> int:
        """Evaluate ``BeStill``.

        Raises:
            SnapshotTooOld: it is the turn of commits.
            Invalid: the timestamp lies too far ahead.
        """
        at, of_node = request.at, self.protections.of_node
        _check_ahead(at, view.now)
        of_node.be_still(at, view.now, self.monotonic())
        if view.now < at and of_node.are_busy():
            of_node.wait(self.range_id, at)
            raise Blocked
        return at

    def protect(self, view: View, request: ProtectWhole) -> int:
        """Evaluate ``ProtectWhole``.

        Raises:
            SnapshotTooOld: the range has committed something at the timestamp, or after it.
            Invalid: the timestamp lies too far ahead, or the client has too many.
            Unavailable: there are too many, or the clock has moved by too much for others.
        """
        at = request.at
        _check_ahead(at, view.now)
        if self.reads.last_commit >= at:
            raise SnapshotTooOld(
                f"a range has committed something after {at} already; nothing was protected "
                "there: try again with a later timestamp"
            )
        may_commit_below = any(each.timestamp <= at for each in self.reads.intents.under_way())
        if view.before or view.in_flight or may_commit_below:
            raise Blocked
        self.protections.of_node.pass_over(at, self.clock.reading(), self.monotonic())
        self.protections.take_until_released(at, request.client, request.host)
        self.clock.pass_over(at)
        return at

    def is_busy(self) -> bool:
        """Return whether transactions over several ranges are under way here."""
        return self.is_committing() or any(True for _ in self.reads.intents.under_way())

    def release(self, _: View, request: ReleaseWhole) -> None:
        """Evaluate ``ReleaseWhole``, of the node's own process."""
        self.protections.release(request.at)


def _check_ahead(at: int, now: int) -> None:
    if at > now + from_seconds(WHOLE_AHEAD_SECONDS_MAX):
        raise Invalid(
            f"the timestamp {at} lies more than {WHOLE_AHEAD_SECONDS_MAX:g} s ahead; nothing was "
            "protected: choose one that is nearer"
        )
