"""Ranges side by side in one engine, which notes what each of them touches.

::

    range 1 ──┐
    range 2 ──┼──▶ WatchedEngine: while one of them acts, every read and write must be its own
    range 3 ──┘

Each range is a replica with all of its evaluators, on a scripted group
(:mod:`tests.messaging.one_range`). They are put together by hand, by their descriptors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine, MemorySnapshot
from postroom.messaging.ingest.restores import Restoring
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueDefinition,
    QueueSettings,
)
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage, PostponeMessages, ReapQueue
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import LeasedWrites, Proposal
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.requests import Committed, CommitTransaction, Delete, Get, Put
from tests.messaging.one_range import Asked, OneRange

LONGEST: Final = b"\xff" * 8192
ODD_KEYS: Final = (
    b"", b"\x00", b"\x00\x01", b"\x00\xff", b"a", b"a\x00", b"a\x00\x00", b"a\x00\x01", b"a\x01",
    b"a/b", b"a\xff", b"b", b"\xff", LONGEST,
)  # fmt: skip
"""Keys that are prefixes and successors of each other, or look like parts of engine keys."""
CUTS: Final = (
    (b"a",), (b"a\x00",), (b"a\x00\x01",), (b"\x00",), (LONGEST,), (b"a", b"a\x00"),
    (b"\x00\xff", b"b"),
)  # fmt: skip
"""Cuts at a key, at its successor, at a prefix, and around one key alone."""
QUEUE: Final = "queue"
OF_ROOT: Final = (
    keys.record_key(ROOT_ID, "position "),
    keys.queue_definitions_prefix(ROOT_ID),
)
"""The prefixes of the records of the root that every range reads: positions, and queues."""


class _Watched:
    """The reads of an engine or a snapshot, which the engine notes first."""

    watch: WatchedEngine

    def get(self, key: bytes, /) -> bytes | None:
        self.watch.note(key, key + b"\x00")
        return super().get(key)  # type: ignore[misc]

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if not lower.startswith(OF_ROOT):
            self.watch.note(lower, upper)
        return super().iterate(lower, upper, reverse=reverse)  # type: ignore[misc]


class _WatchedSnapshot(_Watched, MemorySnapshot):
    pass


class WatchedEngine(_Watched, MemoryEngine):
    """An engine that notes which spans are touched outside of those that may be.

    Attributes:
        outside: the spans that were touched and may not be.
    """

    def __init__(self) -> None:
        super().__init__(MemoryDisk())
        self.watch = self
        self.outside: list[tuple[bytes, bytes]] = []
        self._allowed: list[keys.KeySpan] | None = None

    @contextmanager
    def only(self, bounds: Bounds) -> Iterator[None]:
        """Allow only what belongs to one range, as its bounds are now, and check that at the end.

        It may be nested: the innermost range counts.
        """
        before, self._allowed = self._allowed, own_spans(bounds)
        try:
            yield
        finally:
            self._allowed = before
        assert not self.outside, f"{bounds.descriptor} touches {self.outside}"

    def note(self, lower: bytes, upper: bytes) -> None:
        """Note that a span is touched."""
        if self._allowed is None or lower >= upper:
            return
        if not any(span.lower <= lower and upper <= span.upper for span in self._allowed):
            self.outside.append((lower[:40], upper[:40]))

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        self.note(lower, upper)
        return super().approximate_bytes(lower, upper)

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        for key in writes:
            self.note(key, key + b"\x00")
        super().write(writes, sync=sync)

    def snapshot(self) -> MemorySnapshot:
        made = _WatchedSnapshot(self._content, self)
        made.watch = self
        return made

    def content(self, bounds: Bounds) -> dict[bytes, bytes]:
        """Return everything that belongs to a range."""
        found = itertools.chain.from_iterable(
            self._content.iterate(*span) for span in own_spans(bounds)
        )
        return dict(found)


def own_spans(bounds: Bounds) -> list[keys.KeySpan]:
    """Return the spans of engine keys that belong to a range."""
    prefix = keys.range_prefix(bounds.descriptor.range_id)
    return [keys.KeySpan(prefix, keys.after_prefix(prefix)), *bounds.spans]


class Neighbour(OneRange):
    """One of several ranges in an engine.

    Attributes:
        bounds: its bounds.
    """

    _numbers = itertools.count(1)

    def __init__(
        self, engine: WatchedEngine, descriptor: RangeDescriptor, *, is_general_only: bool
    ) -> None:
        self.watched = engine
        record = {descriptor_key(descriptor.range_id): encode_descriptor(descriptor)}
        engine.write(record, sync=True)
        super().__init__(
            is_general_only=is_general_only, engine=engine, range_id=descriptor.range_id
        )
        self.bounds = self.replica.bounds
        restoring = Restoring(
            self.bounds, self.replica.protections, self.clock.pass_over, self.replica.begin_anew
        )
        restoring.register(self.replica.registry)
        self.messaging.restoring = restoring
        self.lead()

    @property
    def start(self) -> bytes:
        """Return its first key."""
        return self.bounds.start

    @property
    def end(self) -> bytes | None:
        """Return the first key behind it."""
        return self.bounds.end

    def keys_of(self, names: tuple[bytes, ...] = ODD_KEYS) -> list[bytes]:
        """Return the keys among ``names`` that it contains, in order."""
        return sorted(name for name in names if self.bounds.contains(name))

    def ask(self, request: Any, *, urgent: bool = True) -> Asked:
        with self.watched.only(self.bounds):
            return super().ask(request, urgent=urgent)

    def result(self, request: Any) -> Any:
        """Return the answer of a request, which must come at once."""
        [(answer, error)] = self.ask(request).answers
        if error is not None:
            raise error
        return answer

    def transaction_id(self) -> bytes:
        """Return a new id."""
        return b"a client" + next(self._numbers).to_bytes(8, "big")

    def transaction(self, *writes: Any, **fields: Any) -> CommitTransaction[Any]:
        """Return a commit, whose anchor is the first key of the range."""
        now = self.clock.reading()
        said = {"read_timestamp": 0, "anchor": self.start, "reads": [], "spans": []} | fields
        return CommitTransaction(
            self.transaction_id(), began=now, seconds_max=60.0, writes=list(writes), **said
        )

    def commit(self, *writes: Any, **fields: Any) -> Committed:
        """Commit writes."""
        committed: Committed = self.result(self.transaction(*writes, **fields))
        self.pass_time(0.001)
        return committed

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        found: bytes | None = self.result(Get(key)).value
        return found

    def becomes(self, start: bytes, end: bytes | None) -> None:
        """Let its group apply a descriptor with other bounds."""
        before = self.bounds.descriptor
        after = RangeDescriptor(before.range_id, start, end, before.generation + 1)
        writes: WriteSet = {descriptor_key(after.range_id): encode_descriptor(after)}
        command = LeasedWrites(self.replica.lease.sequence, writes)
        self.replica.start(Proposal(command, [], [], self.replica.last_commit))
        self.settle()

    def define_queue(self) -> None:
        """Make the queue at the root, or let another range learn of it."""
        settings = QueueSettings(purge_after=0.0)
        if self.replica.range_id != ROOT_ID:
            self.hear(QUEUE, QueueDefinition(QUEUE, 1, 0, settings))
            self.ask(AdvanceQueues(1))
            return
        self.commit(CreateQueue(QUEUE, settings))

    def drop_queue(self) -> None:
        """Drop the queue at the root, or let another range learn of that."""
        if self.replica.range_id != ROOT_ID:
            self.hear(QUEUE, None)
            self.ask(AdvanceQueues(1))
        else:
            self.commit(DropQueue(QUEUE))

    def fill(self, names: tuple[bytes, ...] = ODD_KEYS) -> None:
        """Store something of each kind at each of the keys that it contains."""
        self.define_queue()
        for name in self.keys_of(names):
            self.commit(Put(name, b"old"), EnqueueMessage(name, b"message"))
            self.commit(Put(name, b"new"), EnqueueMessage(name, b"another"))
            if name and len(name) < 1000:
                self.commit(EnqueueInQueue(QUEUE, name, "", name, b"payload"))
            deleted = name + b"\x00deleted"
            if len(deleted) <= len(LONGEST) and self.bounds.contains(deleted):
                self.commit(Put(deleted, b"gone"))
                self.commit(Delete(deleted))
            reap = ReapQueue(name, 1, 1000, self.transaction_id(), 60.0)
            [(id_, _)] = self.result(reap).messages
            postponed = PostponeMessages(name, [(id_, 0)], seconds=60.0, hold=True)
            self.commit(postponed)


def side_by_side(*cuts: bytes, is_general_only: bool = False) -> list[Neighbour]:
    """Return ranges with the ids 1, 2, ... in one engine, cut at these keys."""
    engine = WatchedEngine()
    spans = zip((b"", *cuts), (*cuts, None), strict=True)
    return [
        Neighbour(engine, RangeDescriptor(range_id, *span), is_general_only=is_general_only)
        for range_id, span in enumerate(spans, 1)
    ]
