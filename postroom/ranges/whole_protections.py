"""Timestamps that are protected as a whole in all ranges, at one moment to come.

Each range takes its snapshot of the engine between two proposals, before the moment, and passes its
clock over it. All that it had committed is below the moment, and all that follows is above::

    client ── Now ─▶ present ── ProtectWhole(present + 50 ms) ─┬─▶ range 1: snapshot ─ clock passes
                                                               └─▶ range 2: snapshot ─ clock passes

Messages between ranges, and transactions over several, make the clock of each range that they reach
pass over their own. The snapshots therefore are a consistent cut (Mattern, Virtual Time and Global
States of Distributed Systems, 1989): no range has an effect whose cause another one lacks.

A range in which a transaction is prepared has no such moment, since that may commit below. It waits
until that is resolved, and prepares no other one meanwhile: its keys are closed
(:mod:`postroom.ranges.transactions.closed_keys`). If it has committed something above the moment
meanwhile, the request is refused, and its client chooses a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv.clock import from_seconds
from postroom.limits import WHOLE_AHEAD_SECONDS_MAX
from postroom.ranges.contract import ConcernsStore, Read, on_everything
from postroom.ranges.evaluation import Blocked, View
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.ports import Registry
from postroom.ranges.protections import Protections
from postroom.ranges.requests import TimestampNumber
from postroom.ranges.rights import Need, Verb


class ProtectWhole(ConcernsStore, Read, frozen=True, tag="protect_whole", repr_omit_defaults=True):
    """A request to keep what is stored at a moment to come, with versions or without.

    The answer is the moment. Versions need a ``Protect`` beside it.

    Attributes:
        at: the moment, a timestamp that no range has committed at yet.
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


class ReleaseWhole(ConcernsStore, Read, frozen=True, tag="release_whole", repr_omit_defaults=True):
    """A request to give back what ``ProtectWhole`` has taken.

    Attributes:
        at: the moment.
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
        reads: the reads of the range.
        protections: its protections.
        pass_over: has the clock of the node pass over a timestamp.
    """

    reads: LocalReads
    protections: Protections
    pass_over: Callable[[int], None]

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.reads[ProtectWhole] = self.protect
        registry.reads[ReleaseWhole] = self.release

    def protect(self, view: View, request: ProtectWhole) -> int:
        """Evaluate ``ProtectWhole``.

        Raises:
            SnapshotTooOld: the range has committed something at the moment, or after it.
            Invalid: the moment lies too far ahead, or the client has too many.
            Unavailable: there are too many.
        """
        at, closed = request.at, self.reads.intents.closed
        if at > view.now + from_seconds(WHOLE_AHEAD_SECONDS_MAX):
            raise Invalid(
                f"the timestamp {at} lies more than {WHOLE_AHEAD_SECONDS_MAX:g} s ahead; nothing "
                "was protected: choose one that is nearer"
            )
        if self.reads.last_commit >= at:
            closed.open()
            raise SnapshotTooOld(
                f"a range has committed something after {at} already; nothing was protected "
                "there: try again with a later timestamp"
            )
        if self._has_prepared() or view.before or view.in_flight:
            raise Blocked
        closed.open()
        self.protections.take_until_released(at, request.client, request.host)
        self.pass_over(at)
        return at

    def _has_prepared(self) -> bool:
        """Return whether a transaction is prepared; then no other one is, until it has ended."""
        intents = self.reads.intents
        if intents.by_transaction:
            intents.closed.close(b"")
            intents.on_met()
        return bool(intents.by_transaction or intents.going)

    def release(self, _: View, request: ReleaseWhole) -> None:
        """Evaluate ``ReleaseWhole``, of the node's own process."""
        self.protections.release(request.at)
