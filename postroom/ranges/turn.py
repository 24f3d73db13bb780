"""One turn of several replicas of a node: each stage with all of them, then the next stage.

::

    begin    ─▶ begin    ─▶ ...   reads, the lease; may answer calls
    evaluate ─▶ evaluate          requests, into a batch            ┐
    complete ─▶ complete          the companion, records that sum up │ no call is answered
    propose  ─▶ propose           the command                       ┘
    conclude ─▶ ...               proposals that write nothing are answered

A node has one range yet, and this is its turn; ``benchmarks/groups.py`` puts many together. The
ranges of a node do not depend on each other, so each could take its turn after the other. But this
is faster: a proposal takes a long way through this program. A processor goes a part of it sixty
times in a row in less time than all of it sixty times. With one transaction in each of 64
proposals, that takes a sixth less.

Invariant: between ``begin`` and ``conclude`` no call is answered. A caller that is answered may ask
at once. It would read a range whose requests are evaluated, at a later timestamp than theirs,
before it is known what they write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.ranges.batch import Batch
    from postroom.ranges.replica import Replica


def take_turn(replicas: Iterable[Replica]) -> None:
    """Make one proposal of what waits at each of ``replicas``, unless one is under way."""
    begun = [replica for replica in replicas if replica.begin_turn()]
    evaluated: list[tuple[Replica, Batch]] = []
    for replica in begun:
        batch = replica.evaluate(replica.reads.last_commit)
        evaluated.append((replica, batch))
    for replica, batch in evaluated:
        replica.complete(batch)
    for replica in [replica for replica, batch in evaluated if replica.propose(batch)]:
        replica.conclude()
