"""A check, in each simulated turn, that the usual way makes what the general way makes.

The usual way evaluates a batch without any effect. The general way evaluates it afterwards, with
its effects, which must be those that the usual way would have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from postroom.messaging.usual import UsualEvaluator, UsualProposal
from postroom.ranges.calls import Call, Proposal
from postroom.ranges.replica import Replica
from postroom.server.node import Node


class CheckedWay:
    """A usual way whose proposals are compared with those of the general way.

    Args:
        replica: the replica, which is idle but for the batch.
        way: its usual way.
    """

    def __init__(self, replica: Replica, way: UsualEvaluator) -> None:
        self._replica = replica
        self._way = way

    def propose(
        self, calls: Iterator[Call], taken: list[Call], last_commit: int
    ) -> Proposal | None:
        """Return the proposal of the calls if it is usual, and the same in both ways."""
        with self._time_stands_still():
            usual = self._way.evaluate(calls, taken, last_commit)
            if usual is None:
                return None
            self._compare(usual, self._general(taken, last_commit))
            return usual.proposal

    @contextmanager
    def _time_stands_still(self) -> Iterator[None]:
        """Let no time pass, as reads of the disk do, so that both ways see the same clocks."""
        clock, lease = self._replica.usual_parts.clock, self._replica.usual_parts.lease
        before = clock._wall, clock._monotonic, lease._monotonic
        wall, monotonic = clock._wall(), clock._monotonic()
        try:
            clock._wall = lambda: wall
            clock._monotonic = lease._monotonic = lambda: monotonic
            yield
        finally:
            clock._wall, clock._monotonic, lease._monotonic = before

    def _general(self, taken: list[Call], last_commit: int) -> Proposal:
        evaluator, proposer = self._replica._evaluator, self._replica._proposer
        batch = evaluator.evaluate(last_commit, list(taken))
        proposer.complete(batch)
        proposal = proposer.propose(batch, last_commit)
        evaluator.batch = None
        assert proposal is not None, "the general way needs another turn"
        return proposal

    def _compare(self, usual: UsualProposal, general: Proposal) -> None:
        one, parts = usual.proposal, self._replica.usual_parts
        assert one.packed == general.packed
        assert (one.command, one.last_commit) == (general.command, general.last_commit)
        assert repr(one.results) == repr(general.results)
        assert len(one.after) == len(general.after)
        assert usual.timestamp == parts.clock.last()
        assert usual.latest.items() <= parts.committer.latest.items()


def check_usual_way(node: Node) -> None:
    """Compare both ways in each turn of a node."""
    way = node.replica.usual_way
    if isinstance(way, UsualEvaluator):
        node.replica.usual_way = CheckedWay(node.replica, way)
