"""The fourth stage of a replica: what the group has agreed on is applied to the engine.

An entry is a command: raw writes that the leaseholder has evaluated (:mod:`.batch`). They are
applied blindly, on every replica alike, unless they were proposed under another lease than the one
that is applied (Spanner and CockroachDB check the same below Raft).

*Snapshots.* A member that lags is sent all engine keys of the range (:mod:`.bounds`), in chunks,
from one moment of the engine. A chunk is a MessagePack list of pairs, in the order of their keys,
about ``CHUNK_BYTES`` long, and longer only if a single pair is. The first one has the descriptor
alone, or nothing if the range was never split. It tells the receiver which keys will come. The
metadata of a right half that is prepared comes along (:data:`RIGHT_HALF_RECORD`). A snapshot is
refused while another range of the node owns one of them (``may_take``): that range lags, and will
give them up. The state is read from an engine snapshot as it is sent, and put in
place in pieces of about ``PIECE_BYTES``. It is never in memory as a whole on either side::

    install:  piece, piece, ... old keys out  |  piece, piece, ... new pairs in

Both descriptors count. The keys within the bounds of the old one go first, and those within the
bounds of the new one, before any of its keys are put.

In between the range is neither of both: it must not be read, and after a crash it is done again
from the start (:mod:`postroom.raft.snapshots`). Only its records are there all the time,
the old one or the new one: they tell a node that is started meanwhile with whom it shares the
range.

*The applied record* (:class:`AppliedRecord`) contains index and term of the last entry, the last
commit, and the sums of the companion. It is made here, because index and term are known only when
an entry is applied. The other two come with the command. A command that is void under its lease
changes neither.

Invariant: the applied record is written with the state that it describes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Final, Protocol

import msgspec

from postroom import limits
from postroom.errors import StoreCorrupted, shorten
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.engine import MANY, Engine, EngineSnapshot, Reader, WriteSet, join
from postroom.raft.interface import CommittedEntry, StateSnapshot
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import LeasedWrites, Proposal, decode_in_parts
from postroom.ranges.descriptor import (
    RangeDescriptor,
    decode_descriptor,
    descriptor_key,
    read_descriptor,
)
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.ports import Registry

APPLIED_RECORD: Final = "applied"
RIGHT_HALF_RECORD: Final = "right half"
"""The record of a range that is split soon: the id of the right half, whose metadata it has."""


class AppliedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a range.

    ::

        03 <range> 05 "applied"  →  [index, term, last commit, sums]

    The state machine writes it with each entry, with the index and the term of
    that. The command of the entry brings the other two. The companion of a range keeps its sums in
    it, packed: the counters of messages. A record of their own would be written with nearly every
    proposal.

    Attributes:
        index, term: the last entry that is applied.
        last_commit: a timestamp that no commit in the state is above.
        sums: the sums of the companion, packed; empty: there are none.
    """

    index: int = 0
    term: int = 0
    last_commit: int = 0
    sums: bytes = b""


encode_applied: Final = msgspec.msgpack.Encoder().encode
decode_applied: Final = msgspec.msgpack.Decoder(AppliedRecord).decode


def read_applied(stored: Reader, range_id: int) -> AppliedRecord:
    """Return the applied record of a range, as ``stored`` has it; a new range has none.

    It is read past the cache of values, which does not hear of it.
    """
    key = keys.record_key(range_id, APPLIED_RECORD)
    for _, packed in stored.iterate(key, key + b"\x00"):
        return decode_applied(packed)
    return AppliedRecord()


CHUNK_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 1024 * 1024

_encode = msgspec.msgpack.encode
_pairs = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

LARGE_BYTES_A_KEY: Final = 16
"""Commands with fewer bytes, for each of the keys that have room in a turn, are decoded at once."""

decode_command = msgspec.msgpack.Decoder(LeasedWrites).decode


class StateOwner(Protocol):
    """The replica, as the state machine sees it."""

    def noop_applied(self) -> None:
        """Hear that an entry of the group's own is applied: a new leader's first one, perhaps."""

    def stop_serving(self) -> None:
        """Stop serving: memory does not hold for the state that is to come, or has come."""


class RangeState:
    """The state machine of a range, a :class:`postroom.raft.interface.StateMachine`.

    Args:
        range_id: the id of the range.
        stored: the node's engine.
        cache: the cache of the applied state, emptied when that changes without its knowledge.
        registry: the observers of what is applied.
        lease_holder: the lease that is applied.
        owner: the replica.

    Attributes:
        may_take: returns whether no other range of the node has keys within a descriptor.
        arriving: the descriptor of a snapshot that is being put in place; ``None``: there is none,
            or the replica has its bounds.
    """

    def __init__(
        self,
        range_id: int,
        stored: Engine,
        cache: Cache,
        registry: Registry,
        lease_holder: LeaseHolder,
        owner: StateOwner,
    ) -> None:
        self._range_id = range_id
        self._stored = stored
        self._cache = cache
        self._registry = registry
        self._observers, self._triggers = registry.observers, registry.triggers
        self._lease_holder = lease_holder
        self._owner = owner
        self._applied_key = keys.record_key(range_id, APPLIED_RECORD)
        self._take(read_applied(stored, range_id))
        self._decoding: _CommandDecoding | None = None
        self.may_take: Callable[[RangeDescriptor], bool] = lambda _: True
        self.arriving: RangeDescriptor | None = None

    def _take(self, record: AppliedRecord) -> None:
        self._index, self._term = record.index, record.term
        self._last_commit, self._sums = record.last_commit, record.sums

    def applied_index(self) -> int:
        """Return the index of the last entry whose effects are stored."""
        return self._index

    @property
    def sums(self) -> bytes:
        """Return the sums of the companion as applied, packed; empty: there are none."""
        return self._sums

    def applied_term(self) -> int:
        """Return the term of that entry."""
        return self._term

    def prepare(self, index: int, term: int, command: memoryview) -> bool:
        """Decode a part of a large command; return whether it can be applied in this turn."""
        if len(command) <= LARGE_BYTES_A_KEY * limits.COMPLETED_AT_ONCE_MAX:
            return True
        if self._decoding is None or self._decoding.entry != (index, term):
            self._decoding = _CommandDecoding((index, term), command)
        return self._decoding.go_on()

    def apply(self, entries: Iterable[CommittedEntry], staged: WriteSet) -> None:
        """Apply committed entries: their raw writes, and the last index, join ``staged``."""
        before = self._index
        for index, term, command, context in entries:
            mine = context if type(context) is Proposal else None
            if command is None:
                self._owner.noop_applied()
            else:
                decided = mine.command if mine else self._decoded(index, term, command)
                if decided.lease_sequence == self._lease_holder.lease.sequence:
                    self._stage(decided, staged)
                elif mine is not None:
                    mine.rejected = True
            self._index, self._term = index, term
        if self._index != before:
            record = (self._index, self._term, self._last_commit, self._sums)
            staged[self._applied_key] = encode_applied(record)

    def _stage(self, decided: LeasedWrites, staged: WriteSet) -> None:
        """Stage the effects of a command that is good under the lease."""
        writes = decided.writes
        if not writes.keys().isdisjoint(self._observers):
            self._observe(writes, staged)
        # Last, since it cannot fail: what is staged is all of it or nothing.
        if len(writes) < MANY:
            staged.update(writes)
        else:
            join(staged, writes)
        if decided.last_commit:
            self._last_commit = decided.last_commit
        if decided.sums is not None:
            self._sums = decided.sums
        recorder = self._registry.recorder
        if recorder is not None and recorder.is_on:
            recorder.record(decided, self._last_commit, staged)

    def _decoded(self, index: int, term: int, command: bytes | memoryview) -> LeasedWrites:
        """Return the command of another leader. The cache does not know what that has written."""
        self._cache.clear()
        decoding, self._decoding = self._decoding, None
        if decoding is not None and decoding.entry == (index, term) and decoding.decoded:
            return decoding.decoded
        return decode_command(command)

    def open_snapshot(self) -> StateSnapshot:
        """Return the range as it is applied, for a member that lags."""
        return open_snapshot(self._stored, self._range_id)

    def is_chunk(self, data: bytes) -> bool:
        """Return whether ``data``, from the network, can be a part of this range."""
        return is_chunk(self._range_id, data)

    def may_install(self, first: bytes, *, is_whole: bool) -> bool:
        """Return whether no other range of this node has keys of the snapshot that begins so."""
        descriptor = _descriptor_in(self._range_id, first)
        if not self.may_take(descriptor):
            return False
        if is_whole:
            self.arriving = descriptor
        return True

    def install_snapshot(self, chunks: Iterator[bytes]) -> Iterator[WriteSet]:
        """Yield the writes that replace the range, which must not be read in between."""
        self._owner.stop_serving()
        self._cache.clear()
        self._decoding = None
        return install(self._stored, self._range_id, chunks)

    def snapshot_installed(self) -> None:
        """Let memory follow what is stored: the range is another one."""
        self._cache.clear()
        self._take(read_applied(self._stored, self._range_id))
        for key, observer in self._observers.items():
            observer(self._stored.get(key))
        self._owner.stop_serving()

    def _observe(self, writes: WriteSet, staged: WriteSet) -> None:
        for key, observer in self._observers.items():
            if key in writes:
                observer(writes[key])
        for key, trigger in self._triggers.items():
            if key in writes:
                trigger(writes[key], staged)


class _CommandDecoding:
    """A command that is decoded over several turns.

    Attributes:
        entry: the index and the term of its entry.
        decoded: the command, when that is done.
    """

    def __init__(self, entry: tuple[int, int], command: memoryview) -> None:
        self.entry = entry
        self.decoded: LeasedWrites | None = None
        self._decoding = decode_in_parts(command)

    def go_on(self) -> bool:
        """Decode one turn's share; return whether it is done."""
        if self.decoded is None:
            try:
                next(self._decoding)
            except StopIteration as stop:
                self.decoded = stop.value
        return self.decoded is not None


# --- snapshots


_CONTENT: Final = keys.KeySpan(keys.TRANSACTION, keys.STAGED_END)
"""The engine keys that lie under user keys, of all ranges."""


def _metadata(range_id: int) -> keys.KeySpan:
    prefix = keys.range_prefix(range_id)
    return keys.KeySpan(prefix, keys.after_prefix(prefix))


def spans(stored: Reader, range_id: int) -> list[keys.KeySpan]:
    """Return the spans of the engine keys of a range, within the bounds that are stored."""
    content = Bounds(read_descriptor(stored, range_id)).spans
    return [_metadata(range_id), *_right_half(stored, range_id), *content]


def _right_half(stored: Reader, range_id: int) -> list[keys.KeySpan]:
    """Return the span of the metadata of a right half that a range has, if it has any."""
    told = stored.get(keys.record_key(range_id, RIGHT_HALF_RECORD))
    return [] if told is None else [_metadata(int.from_bytes(told, "big"))]


def open_snapshot(engine: Engine, range_id: int) -> StateSnapshot:
    """Return the range as the engine holds it, with the index that it says is applied."""
    frozen = engine.snapshot()
    return StateSnapshot(read_applied(frozen, range_id).index, _SnapshotChunks(frozen, range_id))


class _SnapshotChunks:
    """An iterator that closes its engine snapshot also if it was never begun."""

    def __init__(self, frozen: EngineSnapshot, range_id: int) -> None:
        self._frozen = frozen
        self._chunks = _cut(frozen, range_id)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        self._chunks.close()
        self._frozen.close()


def _cut(frozen: Reader, range_id: int) -> Generator[bytes, None, None]:
    told = ((key, frozen.get(key)) for key in _told_first(range_id))
    yield _encode([(key, value) for key, value in told if value is not None])
    pairs: list[tuple[bytes, bytes]] = []
    size = 0
    for span in sorted(spans(frozen, range_id)):  # a right half may have an id below its range's
        for key, value in frozen.iterate(*span):
            if pairs and size + len(key) + len(value) > CHUNK_BYTES:
                yield _encode(pairs)
                pairs, size = [], 0
            pairs.append((key, value))
            size += len(key) + len(value)
    if pairs:
        yield _encode(pairs)


def is_chunk(range_id: int, data: bytes) -> bool:
    """Return whether ``data``, from the network, contains pairs of this range, in order.

    The bounds of the range, and the right half whose metadata it has, are known, and checked, only
    when the pairs are put in place.
    """
    if not data:
        return True
    metadata = _metadata(range_id)
    try:
        pairs = _pairs.decode(data)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return False
    before = b""
    for key, _ in pairs:
        is_own = any(span.lower <= key < span.upper for span in (metadata, _CONTENT))
        is_of_right_half = keys.RANGE <= key < _CONTENT.lower and keys.is_of_queues(key)
        if key <= before or not (is_own or is_of_right_half):
            return False
        before = key
    return True


def install(stored: Reader, range_id: int, chunks: Iterable[bytes]) -> Iterator[WriteSet]:
    """Yield the writes that replace the range by that of ``chunks``, one after the other.

    Raises:
        StoreCorrupted: the chunks contain keys outside of the bounds of their range.
    """
    metadata, *others = spans(stored, range_id)
    records = keys.KeySpan(keys.record_key(range_id, ""), metadata.upper)
    for span in (keys.KeySpan(metadata.lower, records.lower), *others):
        yield from _removals(stored, span)
    outdated = {key for key, _ in stored.iterate(*records)}
    piece: WriteSet = {}
    size = 0
    chunks = iter(chunks)
    first = next(chunks, b"")
    arriving = _Arriving(range_id, first)
    if arriving.others != others:
        for span in arriving.others:
            yield from _removals(stored, span)
    for chunk in chain((first,), chunks):
        if piece and size + len(chunk) > PIECE_BYTES:
            yield piece
            piece, size = {}, 0
        pairs = _pairs.decode(chunk) if chunk else []
        arriving.check(pairs)
        piece.update(pairs)
        outdated.difference_update(key for key, _ in pairs)
        size += len(chunk)
    piece.update(dict.fromkeys(outdated))
    if piece:
        yield piece


def clear(
    stored: Reader, range_id: int, spans: Iterable[tuple[bytes, bytes | None]]
) -> Iterator[WriteSet]:
    """Yield the writes that delete the metadata of a range, and the data of spans of keys.

    The descriptor goes first, so that the range is not taken for one that is here.
    """
    yield {descriptor_key(range_id): None}
    for span in (*_right_half(stored, range_id), _metadata(range_id)):
        yield from _removals(stored, span)
    for start, end in spans:
        for span in Bounds(RangeDescriptor(range_id, start, end)).spans:
            yield from _removals(stored, span)


def _descriptor_in(range_id: int, first: bytes) -> RangeDescriptor:
    """Return the descriptor that the first chunk of a snapshot tells."""
    told = dict(_pairs.decode(first) if first else ()).get(descriptor_key(range_id))
    return decode_descriptor(told, range_id)


def _told_first(range_id: int) -> tuple[bytes, bytes]:
    """Return the keys of the records that the first chunk tells, in order."""
    return descriptor_key(range_id), keys.record_key(range_id, RIGHT_HALF_RECORD)


class _Arriving:
    """The range that a snapshot brings.

    Attributes:
        others: the spans of its engine keys beside its metadata.
    """

    def __init__(self, range_id: int, first: bytes) -> None:
        self._range_id = range_id
        self._bounds = Bounds(_descriptor_in(range_id, first))
        told = dict(_pairs.decode(first) if first else ())
        right_id = told.get(keys.record_key(range_id, RIGHT_HALF_RECORD))
        self._of_right = [] if right_id is None else [_metadata(int.from_bytes(right_id, "big"))]
        self.others = [*self._of_right, *self._bounds.spans]

    def check(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Check that the pairs of a chunk belong to the range.

        Raises:
            StoreCorrupted: one does not.
        """
        spans = (_metadata(self._range_id), *self.others)
        for key, _ in pairs:
            if not any(lower <= key < upper for lower, upper in spans):
                raise StoreCorrupted(
                    f"the snapshot of range {self._range_id} that came has the key {_shown(key)}, "
                    "which the range does not contain; this replica stops: wipe it, and let it be "
                    "fed again"
                )


def _shown(key: bytes) -> str:
    return shorten(keys.user_key(key) if key >= _CONTENT.lower else key)


def _removals(stored: Reader, span: keys.KeySpan) -> Iterator[WriteSet]:
    """Yield deletions of the keys of ``span``, a piece at a time.

    Keys that are gone are not stepped over again.
    """
    lower = span.lower
    while True:
        piece: WriteSet = {}
        size = 0
        for key, value in stored.iterate(lower, span.upper):
            piece[key] = None
            size += len(key) + len(value)
            if size > PIECE_BYTES:
                break
        if not piece:
            return
        lower = next(reversed(piece)) + b"\0"
        yield piece
