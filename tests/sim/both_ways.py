"""A check, in each simulated turn, that the usual way makes what the general way makes.

The usual way evaluates a batch without any effect. The general way evaluates it afterwards, with
its effects, which must be those that the usual way would have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from postroom.messaging.usual import UsualBatch, UsualEvaluator
from postroom.ranges.admission import FairQueue
from postroom.ranges.batch import Batch
from postroom.ranges.calls import Call, Proposal
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.replica import Replica
from postroom.ranges.usual import Share


class WaysDiffer(BaseException):
    """The failure of a comparison, or of the usual way.

    It is not an ``Exception``, after which the replica would go on in the general way.
    """


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
        self, calls: Iterator[Call], taken: list[Call], last_commit: int, share: Share
    ) -> Proposal | Batch | None:
        """Return the proposal of the calls if it is usual, and the same in both ways."""
        replica = self._replica
        try:
            assert not replica.reads.only_commits or replica.has_only_commits()
            return self._proposed(calls, taken, last_commit, share)
        except Exception as error:
            raise WaysDiffer from error

    def _proposed(
        self, calls: Iterator[Call], taken: list[Call], last_commit: int, share: Share
    ) -> Proposal | Batch | None:
        with self._time_stands_still():
            usual = self._way.evaluate(calls, taken, last_commit, share)
            if usual is None:
                return None
            if isinstance(usual.proposal, Batch):
                batch = self._general_batch(taken, last_commit, share)
                self._compare_batches(usual, usual.proposal, batch)
                return batch
            self._compare(usual, usual.proposal, self._general(taken, last_commit))
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
        evaluator, proposer = self._replica.evaluator, self._replica.proposer
        batch = evaluator.evaluate(last_commit, list(taken))
        proposer.complete(batch)
        proposal = proposer.propose(batch, last_commit)
        evaluator.batch = None
        assert proposal is not None, "the general way needs another turn"
        return proposal

    def _general_batch(self, taken: list[Call], last_commit: int, share: Share) -> Batch:
        evaluator = self._replica.evaluator
        batch = Batch(Evaluation(evaluator._cache, self._replica.range_id, last_commit))
        evaluator._evaluate_calls(batch, FairQueue(), share.bytes, share.steps, iter(taken))
        assert batch.unfinished is None, "the general way needs another turn"
        return batch

    def _compare_batches(self, usual: UsualBatch, made: Batch, general: Batch) -> None:
        one, other = made.ctx, general.ctx
        assert list(one.staged.items()) == list(other.staged.items())
        assert repr(made.results) == repr(general.results)
        for field in (
            "garbage", "notes", "sent", "deferred", "tally", "bytes", "moved", "steps",
            "steps_before", "began", "timestamp", "stamp", "last_commit", "sums",
        ):  # fmt: skip
            assert getattr(one, field) == getattr(other, field), field
        assert len(one.after) == len(other.after)
        self._compare_memory(usual)

    def _compare(self, usual: UsualBatch, one: Proposal, general: Proposal) -> None:
        assert one.packed == general.packed
        assert (one.command, one.last_commit) == (general.command, general.last_commit)
        assert repr(one.results) == repr(general.results)
        assert len(one.after) == len(general.after)
        self._compare_memory(usual)

    def _compare_memory(self, usual: UsualBatch) -> None:
        parts = self._replica.usual_parts
        assert usual.timestamp == parts.clock.last()
        assert usual.latest.items() <= parts.committer.latest.items()


def check_usual_way(replica: Replica) -> None:
    """Compare both ways in each turn of a replica."""
    way = replica.usual_way
    if isinstance(way, UsualEvaluator):
        replica.usual_way = CheckedWay(replica, way)
