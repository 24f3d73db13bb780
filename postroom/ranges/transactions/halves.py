"""Transactions over several ranges, when a range splits: those that are under way end first.

A prepared record may concern keys of both halves. The COMMIT record of a transaction goes with its
anchor, while the list of those that must hear of it stays. All of this lasts for a moment only. A
split therefore waits until nothing of it concerns the right half. Meanwhile that is closed for
further transactions over several ranges (:mod:`.closed_keys`).
"""

from __future__ import annotations

from postroom.kv import keys
from postroom.kv.engine import ValueReader
from postroom.ranges.contract import KeySet
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.locks import LockTable
from postroom.ranges.transactions.intents import IntentTable


class TransactionHalves:
    """The transactions over several ranges of one range; it implements ``Divisible``.

    Args:
        range_id: the id of the range.
        intents: the intents of the range.
        locks: the locks of the range.
    """

    def __init__(self, range_id: int, intents: IntentTable, locks: LockTable) -> None:
        self._unresolved = keys.unresolved_prefix(range_id)
        self._intents = intents
        self._locks = locks

    def prepared(self, key: bytes | None) -> None:
        """Open what was closed for an earlier split."""
        del key
        self._intents.closed.open()

    def check(self, ctx: Evaluation) -> None:
        """Do nothing: all of it ends by itself."""

    def divide_some(self, ctx: Evaluation) -> bool:
        """Return false: nothing is divided."""
        del ctx
        return False

    def has_rest(self, _: ValueReader) -> bool:
        """Return whether something of an earlier split is left: nothing ever is."""
        return False

    def give_up(self, ctx: Evaluation) -> None:
        """Do nothing: nothing is divided."""

    def must_wait(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether a transaction that has not ended concerns keys from ``key`` on.

        These are closed then.
        """
        waits = self._intents.keeps_away(KeySet(spans=((key, None),)))
        if not waits:
            first, end = self._unresolved + keys.escape(key), keys.after_prefix(self._unresolved)
            waits = next(ctx.iterate(first, end), None) is not None
        if waits:
            self._intents.closed.close(key)
            self._intents.on_met()
        return waits

    def halve(self, ctx: Evaluation, right: RangeDescriptor) -> bytes:
        """Return nothing: nothing goes to the right half."""
        del ctx, right
        return b""

    def halved(self) -> None:
        """Open the left half: what is left concerns that. Locks of the right half are gone."""
        self._intents.closed.open()
        self._locks.keys_have_left()
