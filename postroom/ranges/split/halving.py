"""The split itself: one entry of the log, which has nothing else in it.

::

    Split ─▶ divided? nothing due for keys of the right half? members ready? ─ no ─▶ Unavailable
          └▶ both descriptors · what goes with its key · applied record and lease of right ─▶ entry

The entry is evaluated alone, in a proposal of its own. The requests before it are applied by then.
Those behind it are evaluated within the new bounds.

*The lease* of the right half is that of the range. Its holder counts from before it proposed the
split, and begins to serve the right half under the next lease, with fresh memory. Another node
waits from when it has made its right replica, which is later.

*The trigger* (:data:`.records.HALVED_RECORD`) is observed where the entry is applied from the log,
and not where a snapshot brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import msgspec

from postroom.errors import Invalid, Unavailable
from postroom.kv.clock import from_seconds
from postroom.kv.engine import WriteSet
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import ALONE, Registry
from postroom.ranges.replica import Replica
from postroom.ranges.split import records
from postroom.ranges.split.preparing import (
    RETRY_SECONDS,
    check_divisible,
    check_members,
)
from postroom.ranges.split.requests import DivideSome, Split
from postroom.ranges.sweep import sweep_records
from postroom.ranges.transactions.one_range import RECORD_SECONDS

BeginRange = Callable[[int, RangeDescriptor, tuple[int, ...], WriteSet], None]
"""A function that has a node begin to have the right half of a range, with given members.

Its first records join the write set in which the split is applied.
"""


class SplitMustWait(Unavailable):
    """The split has to wait: messages, updates or transactions must come before it."""


@dataclass(eq=False)
class Halving:
    """The evaluator of ``Split``, and its trigger.

    Attributes:
        replica: the replica of the range.
        begin_range: begins the right half on this node.
    """

    replica: Replica
    begin_range: BeginRange

    def register(self, registry: Registry) -> None:
        """Register the requests and the trigger."""
        registry.commands[DivideSome] = self.divide_some
        registry.commands[Split] = self.split
        registry.triggers[records.halved_key(self.replica.range_id)] = self._begin_right

    def _begin_right(self, stored: bytes | None, staged: WriteSet) -> None:
        if stored is not None:
            halved = records.decode_halved(stored)
            self.replica.protections.halve(halved.right.range_id)
            self.begin_range(self.replica.range_id, halved.right, halved.members, staged)

    def divide_some(self, ctx: Evaluation, _: DivideSome) -> int:
        """Evaluate ``DivideSome``."""
        before = ctx.steps
        more = [each.divide_some(ctx) for each in self.replica.registry.divisible]
        return max(ctx.steps - before, 1) if any(more) else 0

    def split(self, ctx: Evaluation, _: Split) -> Generator[object, None, None]:
        """Evaluate ``Split``.

        Raises:
            SplitMustWait: messages, updates or transactions have to come first.
            Unavailable: the range cannot be split just now.
            Invalid: no split is prepared, or the range has something that cannot be divided.
        """
        if ALONE not in ctx.scratch:
            yield ALONE
        replica = self.replica
        left, lease = replica.bounds.descriptor, replica.lease
        prepared = records.decode_split(ctx.get(records.split_key(left.range_id)))
        if prepared is None:
            raise Invalid("no split is prepared; nothing was changed")
        self._check(ctx, prepared.key)
        right = RangeDescriptor(prepared.right_id, prepared.key, left.end, left.generation + 1)
        left = msgspec.structs.replace(left, end=prepared.key, generation=right.generation)
        writes = ctx.writes
        writes[descriptor_key(left.range_id)] = encode_descriptor(left)
        writes[records.split_key(left.range_id)] = None
        sums = b"".join(each.halve(ctx, right) for each in replica.registry.divisible)
        readable_from = replica.protections.readable_from
        writes.update(records.beginning(right, lease, ctx.timestamp, readable_from, sums))
        writes.update(sweep_records(right.range_id, ctx.timestamp))
        members = tuple(map(int, replica.group.members))
        writes[records.halved_key(left.range_id)] = records.encode(
            records.HalvedRecord(right, members)
        )
        ctx.grow(sum(len(key) + len(value or b"") for key, value in writes.items()))
        ctx.after.extend(each.halved for each in replica.registry.divisible)

    def _check(self, ctx: Evaluation, key: bytes) -> None:
        registry = self.replica.registry
        check_members(self.replica.group)
        check_divisible(registry, ctx)
        if registry.replaced_at > ctx.timestamp - from_seconds(RECORD_SECONDS):
            raise Unavailable(
                "the range was restored a moment ago, and transactions of before may still come; "
                "nothing was changed: try again later",
                retry_after=1.0,
            )
        if any(each.must_wait(ctx, key) for each in registry.divisible):
            raise SplitMustWait(
                "messages, updates or transactions for keys of the right half are under way; "
                "nothing was changed: try again when they have ended",
                retry_after=RETRY_SECONDS,
            )
