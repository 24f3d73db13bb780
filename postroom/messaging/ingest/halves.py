"""The division of staged rows and bulk loads when their range splits.

::

    staged rows      lie under their queries: nothing is moved
    publications     the split waits for what those that go right have sent (:mod:`.batches`)
    bulk loads       both halves get the records of those that go on in both (:mod:`.loads`)
"""

from __future__ import annotations

from postroom.kv.engine import ValueReader
from postroom.messaging.ingest.batches import StagedBatches
from postroom.messaging.ingest.loads import BulkLoads
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import Evaluation


class IngestHalves:
    """The staged rows and loads of a range that may split; it implements ``Divisible``.

    Args:
        batches: its staged batches.
        loads: its bulk loads.
    """

    def __init__(self, batches: StagedBatches, loads: BulkLoads) -> None:
        self._batches = batches
        self._loads = loads

    def prepared(self, key: bytes | None) -> None:
        """Let steps go on that have waited for an earlier split."""
        del key
        self._batches.paused = None

    def check(self, ctx: Evaluation) -> None:
        """Do nothing: all of it can be divided."""

    def divide_some(self, ctx: Evaluation) -> bool:
        """Return false: nothing is divided beforehand."""
        del ctx
        return False

    def has_rest(self, _: ValueReader) -> bool:
        """Return whether something of an earlier split is left: nothing ever is."""
        return False

    def give_up(self, ctx: Evaluation) -> None:
        """Do nothing: nothing is divided."""

    def must_wait(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether rows that a publication has sent are on their way."""
        return self._batches.must_wait(ctx, key)

    def halve(self, ctx: Evaluation, right: RangeDescriptor) -> bytes:
        """Stage the records of loads for the right half; return nothing."""
        self._loads.halve(ctx, right)
        return b""

    def halved(self) -> None:
        """Let the steps of the left half go on."""
        self._batches.paused = None
