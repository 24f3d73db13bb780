"""The preparation of a split: its record, and those that await its end.

::

    PrepareSplit ─▶ prepared ─┬─ Split ───────▶ halved: AwaitSplit is told that its key went right
                              └─ CancelSplit ─▶ given up: AwaitSplit is told why

The record is a part of the replicated state, so the next leader goes on. Everything else is in the
leaseholder's memory, and begins afresh with each lease.
"""

from __future__ import annotations

from typing import Final, Protocol

from postroom.errors import Invalid, KeyTooLarge, Unavailable, shorten
from postroom.kv import keys
from postroom.kv.engine import ValueReader
from postroom.limits import KEY_BYTES_MAX
from postroom.raft.group import RaftGroup
from postroom.raft.stored_log import SPLITS
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.listing import RangeInfo
from postroom.ranges.ports import Registry, ServiceWakeUp
from postroom.ranges.replica import Replica
from postroom.ranges.split import records
from postroom.ranges.split.requests import AwaitSplit, CancelSplit, NewRangeId, PrepareSplit

SPLIT_IS_OVER: Final = "the split of the range is over"
"""The token of those that wait for that."""
RETRY_SECONDS: Final = 0.05


class NodeRanges(Protocol):
    """The ranges that a node has, and those that may begin."""

    def check_new_range(self, range_id: int) -> None:
        """Check that a range with this id may begin.

        Raises:
            Invalid: there is or was such a range.
            Unavailable: this node does not know yet that the id was given out.
        """

    def has_range(self, range_id: int) -> bool:
        """Return whether this node has anything of a range."""


class Preparing:
    """The split that a range prepares, if any, and its requests.

    Args:
        replica: the replica of the range.
        stored: the engine that the range reads.
        ids: the ranges of the node.
        wake_up: the wake-up of the service.

    Attributes:
        record: the record, as applied; ``None``: no split is prepared.
    """

    def __init__(
        self, replica: Replica, stored: ValueReader, ids: NodeRanges, wake_up: ServiceWakeUp
    ) -> None:
        self._replica = replica
        self._range_id = replica.range_id
        self._bounds = replica.bounds
        self._stored = stored
        self._ids = ids
        self._wake_up = wake_up
        self._key = records.split_key(replica.range_id)
        self._given_up = b"", ""  # the key and the reason of the last one
        self.record = records.decode_split(stored.get(self._key))
        replica.listing.splitting = lambda: self.record is not None
        self._tell_parts()

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.commands[NewRangeId] = self.new_range_id
        registry.commands[PrepareSplit] = self.prepare
        registry.commands[CancelSplit] = self.cancel
        registry.reads[AwaitSplit] = self.await_end
        registry.observers[self._key] = self._observe

    def may_begin_unasked(self) -> bool:
        """Return whether the range may be split though no user asks: not if it keeps a trail."""
        return self.record is None and not self._replica.registry.is_recorded

    def has_rest(self) -> bool:
        """Return whether an earlier split has left something to delete."""
        return any(each.has_rest(self._stored) for each in self._replica.registry.divisible)

    def _observe(self, stored: bytes | None) -> None:
        self.record = records.decode_split(stored)
        self._tell_parts()
        self._wake_up.set(urgent=True)

    def _tell_parts(self) -> None:
        for each in self._replica.registry.divisible:
            each.prepared(None if self.record is None else self.record.key)

    # --- requests

    def new_range_id(self, ctx: Evaluation, _: NewRangeId) -> int:
        """Evaluate ``NewRangeId``."""
        range_id = records.last_range_id(ctx, ROOT_ID) + 1
        while self._ids.has_range(range_id):
            range_id += 1
        ctx.writes[keys.record_key(ROOT_ID, records.LAST_ID_RECORD)] = keys.u64(range_id)
        ctx.grow(32)
        return range_id

    def prepare(self, ctx: Evaluation, request: PrepareSplit) -> None:
        """Evaluate ``PrepareSplit``.

        Raises:
            WrongRange: the key belongs to another range.
            Invalid: the range cannot be split there, or not at all.
            Unavailable: another split of it is under way, or its group is not ready.
        """
        self._bounds.check(request)
        wanted = records.SplitRecord(request.key, request.right_id)
        known = records.decode_split(ctx.get(self._key))
        if known == wanted or self._is_done(request):
            return
        self._check_key(request.key)
        if known is not None:
            raise Unavailable(
                f"a split of range {self._range_id} at {shorten(known.key)} is under way; nothing "
                "was changed: try again when it is over",
                retry_after=RETRY_SECONDS,
            )
        self._ids.check_new_range(request.right_id)
        check_divisible(self._replica.registry, ctx)
        check_members(self._replica.group)
        ctx.writes[self._key] = stored = records.encode(wanted)
        ctx.grow(len(self._key) + len(stored))

    def _is_done(self, request: PrepareSplit) -> bool:
        descriptor = self._bounds.descriptor
        return (descriptor.range_id, descriptor.start) == (request.right_id, request.key)

    def _check_key(self, key: bytes) -> None:
        if len(key) > KEY_BYTES_MAX:
            raise KeyTooLarge(
                f"the key {shorten(key)} is over the limit of {KEY_BYTES_MAX} bytes; nothing was "
                "changed: no key can begin there"
            )
        if key == self._bounds.start:
            raise Invalid(
                f"range {self._range_id} begins at {shorten(key)} already; nothing was changed: "
                "split at a key within it"
            )

    def cancel(self, ctx: Evaluation, request: CancelSplit) -> bool:
        """Evaluate ``CancelSplit``."""
        self._bounds.check(request)
        known = records.decode_split(ctx.get(self._key))
        if known is None or known.key != request.key:
            return False
        ctx.writes[self._key] = None
        ctx.grow(len(self._key))
        for each in self._replica.registry.divisible:
            each.give_up(ctx)
        ctx.after.append(lambda: self._give_up(request))
        return True

    def _give_up(self, request: CancelSplit) -> None:
        """Tell those that wait why there is no split."""
        self._given_up = request.key, request.reason
        self._replica.wake([SPLIT_IS_OVER])

    def await_end(self, view: View, request: AwaitSplit) -> RangeInfo:
        """Evaluate ``AwaitSplit``. A parked one is told ``WrongRange`` when its key went right.

        Raises:
            Invalid: there is no split at the key.
        """
        if request.key == self._bounds.start:
            return self._replica.listing.info()
        prepared = records.decode_split(view.get(self._key))  # waits for the proposal that ends it
        if prepared is not None and prepared.key == request.key:
            raise MustWait(SPLIT_IS_OVER)
        key, reason = self._given_up
        if key != request.key:
            reason = "no split is under way there"
        raise Invalid(
            f"range {self._range_id} was not split at {shorten(request.key)}: "
            f"{reason or 'the split was cancelled'}"
        )


def check_divisible(registry: Registry, ctx: Evaluation) -> None:
    """Check that the range has nothing that cannot be divided.

    Raises:
        Invalid: it has; the error names it.
    """
    if registry.refusal is not None:
        raise Invalid("an image is being restored into the range; nothing was changed: wait for it")
    for each in registry.divisible:
        each.check(ctx)


def check_members(group: RaftGroup) -> None:
    """Check that the consensus group may split now.

    Raises:
        Unavailable: the members are just changing, or one cannot read the entry of a split.
    """
    if group.is_changing:  # else the right half would keep a member that leaves the left one
        raise Unavailable(
            "the members of the range's group are just changing; nothing was changed: try again",
            retry_after=RETRY_SECONDS,
        )
    older = sorted(
        str(node) for node, each in group.progress().items()
        if each.is_heard and each.entries_version < SPLITS
    )  # fmt: skip
    if older:
        raise Unavailable(
            f"an older version runs on node {', '.join(older)}, which cannot read that a range is "
            "split; nothing was changed: upgrade that node first",
            retry_after=1.0,
        )
