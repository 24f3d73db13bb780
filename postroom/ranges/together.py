"""One turn of several replicas of a node: each step with all of them, then the next step.

::

    begin ─▶ begin ─▶ ...     reads, the lease; may answer calls
    evaluate ─▶ evaluate      requests                              ┐
    complete ─▶ complete      what goes along, records that sum up  │ nobody is answered
    propose ─▶ propose        the command                           ┘
    conclude ─▶ ...           those that have nothing to write answer

A node has one range yet, and then this is its turn; ``benchmarks/groups.py`` puts many together.
The ranges of a node do not depend on each other, so it is the same as if one took its turn after
the other. But it is faster: what a proposal takes is a long way through this program, and a
processor goes a part of it sixty times in a row in less time than all of it sixty times (with one
transaction in each of 64 proposals, it takes a sixth less).

Invariant: between ``begin`` and ``conclude`` nobody is answered. Whoever is answered may ask at
once, and would read a range whose requests are evaluated, at a later timestamp than theirs, before
it is known what they write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.ranges.replica import Replica


def evaluate_together(replicas: Iterable[Replica]) -> None:
    """Turn what waits at each of ``replicas`` into one proposal of it, unless one is under way."""
    begun = [replica for replica in replicas if replica.begin_turn()]
    for replica in begun:
        replica.evaluate_requests()
    for replica in begun:
        replica.complete()
    for replica in [replica for replica in begun if replica.propose()]:
        replica.conclude()
