"""The ranges that leave a node: those that are destroyed, or never held anything.

A replica is destroyed when its node is no member of the range any more.

::

    destroy ── a turn, synced: log out, tombstone in ──▶ turns: the state, piece by piece ──▶ gone

The tombstone (:mod:`postroom.raft.tombstones`) says what is left to clear. A node that was killed
goes on with that when it is opened. A range comes back only by a snapshot, which is refused while a
part of its span is being cleared.

A split may be applied here after the replica of its right half was destroyed. The right half's
state, which the split writes, is then cleared as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from postroom.kv import keys
from postroom.kv.engine import Engine, WriteSet
from postroom.raft.consensus import Consensus
from postroom.raft.tombstones import ClearedSpan, Tombstone, read_tombstone, stage_tombstone
from postroom.ranges.bounds import WrongRange
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.state import clear, read_applied
from postroom.server.replicas import Replicas
from postroom.server.span_map import overlap

_log = logging.getLogger(__name__)


def is_destroyed(stored: Engine, range_id: int) -> bool:
    """Return whether the state of a range is what is left of a replica that was destroyed."""
    tombstone = read_tombstone(stored, keys.raft_log_prefix(range_id))
    return tombstone is not None and (
        bool(tombstone.clears) or read_applied(stored, range_id).index < tombstone.least_index
    )


class DepartingNode(Protocol):
    """The node, as ranges leave it."""

    consensus: Consensus

    @property
    def replicas(self) -> Replicas:
        """Return its ranges."""

    def wake(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""


class DepartingRanges:
    """The ranges that leave one node; see the module.

    Args:
        node: the node, when its consensus is there.
        engine: the node's engine.
        stored: the engine of the state.

    Attributes:
        spans: the spans that are being cleared, by range.
    """

    def __init__(self, node: DepartingNode, engine: Engine, stored: Engine) -> None:
        self.spans: dict[int, tuple[ClearedSpan, ...]] = {}
        self._node = node
        self._engine = engine
        self._stored = stored
        self._pieces: Iterator[WriteSet] | None = None
        self._waits = self._syncs = False
        self._writes: WriteSet = {}
        for key, _ in engine.iterate(keys.RAFT_LOG, keys.RANGE):
            if key[9:] == b"t":
                tombstone = read_tombstone(engine, key[:9])
                if tombstone is not None and tombstone.clears:
                    self.spans[int.from_bytes(key[1:9], "big")] = tombstone.clears

    def forget(self, range_id: int) -> None:
        """Forget a range that holds nothing, between two turns."""
        self._node.replicas.remove(range_id)
        self._writes.update(self._node.consensus.forget(range_id))

    def destroy(self, range_id: int, least_index: int) -> None:
        """Destroy the replica of a range of which this node is no member any more, between turns.

        Args:
            range_id: the range, which is not the root.
            least_index: the applied index of the state that said so, here or at another member.
        """
        node = self._node
        hosted = node.replicas.hosted[range_id]
        spans = [(each.start, each.end) for each in hosted.replica.descriptors()]
        hosted.services.stop()
        hosted.replica.stop_serving()
        node.replicas.remove(range_id)
        hosted.replica.fail_all(WrongRange())
        self._writes.update(node.consensus.destroy(range_id, least_index, spans))
        self._syncs = True
        self._clear(range_id, *spans)
        node.wake(urgent=False)

    def _clear(self, range_id: int, *spans: ClearedSpan) -> None:
        """Clear a range, and spans of keys, after the turn that writes what its tombstone says."""
        self.spans[range_id] = tuple(dict.fromkeys((*self.spans.get(range_id, ()), *spans)))
        self._pieces, self._waits = None, True

    def refuse(self, descriptor: RangeDescriptor, staged: WriteSet) -> None:
        """Clear the right half of a split that is being applied: its replica was destroyed."""
        range_id = descriptor.range_id
        prefix = keys.raft_log_prefix(range_id)
        tombstone = read_tombstone(self._engine, prefix)
        assert tombstone is not None, f"range {range_id} is here twice"
        span = (descriptor.start, descriptor.end)
        clears = tuple(dict.fromkeys((*tombstone.clears, span)))
        stage_tombstone(prefix, _with(tombstone, clears), staged)
        self._clear(range_id, span)

    def has_destroyed(self, range_id: int) -> bool:
        """Return whether a replica of a range was destroyed here."""
        tombstone = read_tombstone(self._engine, keys.raft_log_prefix(range_id))
        return tombstone is not None or range_id in self.spans  # its tombstone is not written yet

    def overlaps(self, descriptor: RangeDescriptor) -> bool:
        """Return whether a part of a range is being cleared, or its metadata is."""
        span = (descriptor.start, descriptor.end)
        return descriptor.range_id in self.spans or any(
            overlap(span, each) for spans in self.spans.values() for each in spans
        )

    @property
    def has_work(self) -> bool:
        """Return whether a turn has something to write."""
        return bool(self._writes or self.spans)

    def stage(self, staged: WriteSet) -> None:
        """Stage what has to go in this turn."""
        if self._syncs:
            self._node.consensus.needs_sync = True
        if self.spans and not self._waits:
            self._stage_piece(staged)
        staged.update(self._writes)
        self._writes, self._waits, self._syncs = {}, False, False
        if self.spans:
            self._node.wake(urgent=False)

    def _stage_piece(self, staged: WriteSet) -> None:
        range_id = next(iter(self.spans))
        if self._pieces is None:
            self._pieces = clear(self._stored, range_id, self.spans[range_id])
        piece = next(self._pieces, None)
        if piece is not None:
            staged.update(piece)
            return
        self._pieces = None
        del self.spans[range_id]
        prefix = keys.raft_log_prefix(range_id)
        tombstone = read_tombstone(self._engine, prefix)
        assert tombstone is not None
        stage_tombstone(prefix, _with(tombstone, ()), staged)
        _log.info("all data of range %d has gone", range_id)


def _with(tombstone: Tombstone, clears: tuple[ClearedSpan, ...]) -> Tombstone:
    return Tombstone(tombstone.least_index, tombstone.term, tombstone.vote, clears)
