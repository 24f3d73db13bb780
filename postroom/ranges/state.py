"""The state machine of a range: what the group has agreed on, applied to the engine.

An entry is a command: raw writes that were evaluated by the leaseholder (:mod:`.batch`). They are
applied blindly, on every replica alike, unless they were proposed under another lease than the one
that is applied (Spanner and CockroachDB check the same below Raft).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.engine import MANY, Engine, WriteSet, join
from postroom.raft.snapshot import StateSnapshot
from postroom.ranges.calls import LeasedWrites, Proposal, decode_in_parts
from postroom.ranges.lease_holder import LeaseHolder
from postroom.ranges.registry import Registry
from postroom.ranges.snapshot import install, is_chunk, open_snapshot

APPLIED_RECORD: Final = "applied"

LARGE_BYTES_A_KEY: Final = 16
"""Commands with fewer bytes, for each of the keys that have room in a turn, are decoded at once."""

decode_command = msgspec.msgpack.Decoder(LeasedWrites).decode


class Owner(Protocol):
    """What the state machine asks of its replica."""

    def noop_applied(self) -> None:
        """An entry of the group's own is applied: a new leader's first one, perhaps."""

    def stop_serving(self) -> None:
        """Memory does not hold for the state that is to come, or has come."""


class RangeState:
    """See the module; a :class:`postroom.raft.state_machine.StateMachine`.

    Args:
        range_id: which range.
        stored: the node's engine.
        cache: of the applied state; emptied when that changes without its knowledge.
        registry: whom to tell what is applied.
        lease_holder: the lease that is applied.
        owner: the replica.
    """

    def __init__(
        self,
        range_id: int,
        stored: Engine,
        cache: Cache,
        registry: Registry,
        lease_holder: LeaseHolder,
        owner: Owner,
    ) -> None:
        self._range_id = range_id
        self._stored = stored
        self._cache = cache
        self._observers = registry.observers
        self._lease_holder = lease_holder
        self._owner = owner
        self._applied_key = keys.record_key(range_id, APPLIED_RECORD)
        self._applied = self._stored_index()
        self._decoding: _Decoding | None = None

    def applied_index(self) -> int:
        """The index of the last entry whose effects are stored."""
        return self._applied

    def noop(self, index: int, term: int, staged: WriteSet) -> None:
        """An entry of the group's own."""
        del term
        self._applied = index
        staged[self._applied_key] = keys.u64(index)
        self._owner.noop_applied()

    def prepare(self, index: int, term: int, command: memoryview) -> bool:
        """A large command is decoded over several turns, and applied in the last of them."""
        if len(command) <= LARGE_BYTES_A_KEY * limits.COMPLETED_AT_ONCE_MAX:
            return True
        if self._decoding is None or self._decoding.entry != (index, term):
            self._decoding = _Decoding((index, term), command)
        return self._decoding.go_on()

    def apply(
        self,
        index: int,
        term: int,
        command: bytes | memoryview,
        context: object | None,
        staged: WriteSet,
    ) -> None:
        """An entry is committed: its raw writes, and the index, join ``staged``."""
        mine = context if isinstance(context, Proposal) else None
        decided = self._decoded(index, term, command) if mine is None else mine.command
        if mine is None:
            self._cache.clear()
        writes = decided.writes
        if decided.lease_sequence == self._lease_holder.lease.sequence:
            if not writes.keys().isdisjoint(self._observers):
                self._observe(writes)
            # Last, since it cannot fail: what is staged is all of it or nothing.
            if len(writes) < MANY:
                staged.update(writes)
            else:
                join(staged, writes)
        elif mine is not None:
            mine.rejected = True
        self._applied = index
        staged[self._applied_key] = keys.u64(index)

    def _decoded(self, index: int, term: int, command: bytes | memoryview) -> LeasedWrites:
        decoding, self._decoding = self._decoding, None
        if decoding is not None and decoding.entry == (index, term) and decoding.decoded:
            return decoding.decoded
        return decode_command(command)

    def open_snapshot(self) -> StateSnapshot:
        """The range as it is applied, for a member that lags."""
        return open_snapshot(self._stored, self._range_id, self._applied_key)

    def is_chunk(self, data: bytes) -> bool:
        """Whether ``data``, from the network, can be a part of this range."""
        return is_chunk(self._range_id, data)

    def install_snapshot(self, chunks: Iterator[bytes]) -> Iterator[WriteSet]:
        """What replaces the range; until ``snapshot_installed`` it is not to be read."""
        self._owner.stop_serving()
        self._cache.clear()
        self._decoding = None
        return install(self._stored, self._range_id, chunks)

    def snapshot_installed(self) -> None:
        """The range is another one: memory follows what is stored."""
        self._cache.clear()
        self._applied = self._stored_index()
        for key, observer in self._observers.items():
            observer(self._stored.get(key))
        self._owner.stop_serving()

    def _observe(self, writes: WriteSet) -> None:
        for key, observer in self._observers.items():
            if key in writes:
                observer(writes[key])

    def _stored_index(self) -> int:
        stored = self._stored.get(self._applied_key)
        return 0 if stored is None else int.from_bytes(stored, "big")


class _Decoding:
    """A command that is decoded over several turns.

    Attributes:
        entry: index and term of its entry.
        decoded: the command, when that is done.
    """

    def __init__(self, entry: tuple[int, int], command: memoryview) -> None:
        self.entry = entry
        self.decoded: LeasedWrites | None = None
        self._decoding = decode_in_parts(command)

    def go_on(self) -> bool:
        """One turn's share; whether it is done."""
        if self.decoded is None:
            try:
                next(self._decoding)
            except StopIteration as stop:
                self.decoded = stop.value
        return self.decoded is not None
