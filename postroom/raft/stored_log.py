"""The layout of a group's log on the engine, and its reading when the group is opened.

Layout, under the group's prefix (the keyspace page is ``kv/keys.py``)::

    prefix | "h"                  hard state: term, vote, the log's base, the members at it
    prefix | "l" | index (8)      one entry: term (8), payload
    prefix | "b"                  the last entry that no member needs: index (8), term (8)
    prefix | "m"                  the members that an applied entry has set: index, members
    prefix | "o"                  the entry that has begun this log: group (8), index (8)
    prefix | "t"                  the tombstone of a destroyed replica (:mod:`.tombstones`)

A range that a split makes begins with a state which all of its first replicas have, as if they had
applied entry 1 of its log (``BEGINNING``). The *origin* is the entry of the other group that was
applied then. A log that has begun proves that this entry is committed.

There are two kinds of engine. On a plain one a turn is one atomic write: applied entries can be
removed in the same turn, and the last two records are not needed.

One that ``replays`` (:mod:`postroom.kv.storage`) has them in a log, but the members with the
state. Either may have got farther than the other one:

* The state lacks entries: they are in the log, and are applied again. Those between the
  two bases are known to be committed.
* The state is ahead: the last turn was cut short, having reached the state only. Its applied
  entries were committed (only committed entries are applied; in a group of one, written ones are).
  The log therefore goes on after them as after a snapshot; the state tells index, term and members.
  The loss of a vote or an entry of that turn does not matter: no other member was told of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import Engine, ValueReader, WriteSet
from postroom.raft.interface import NodeId
from postroom.raft.membership import Members
from postroom.raft.tombstones import Tombstone

ENTRIES_VERSION: Final = 2
"""The version of the entries that this program can read. Frames tell it to the other members."""

ENTRIES_VERSION_MIN: Final = 1
"""The version of the entries that every program can read."""

SPLITS: Final = 2
"""The version since which a command may split a range (:mod:`postroom.ranges.split`)."""

COMMAND: Final = b"\x00"
NOOP: Final = b"\x01"
MEMBERSHIP: Final = b"\x02"
"""The first byte of a payload: a proposal, a leader's first entry, or a new set of members."""

KIND_VERSIONS: Final = {COMMAND: 1, NOOP: 1, MEMBERSHIP: 1}
"""The version of the entries since which each kind exists.

A leader appends an entry of a newer kind only if all members that it hears can read it
(:meth:`postroom.raft.proposals.MemberChanges.is_readable`).
"""

LogEntry: TypeAlias = tuple[bytes, int, int]
"""The payload, the index and the term of an entry, in the order that pysyncobj uses."""

pack_u64 = struct.Struct(">Q").pack
unpack_u64 = struct.Struct(">Q").unpack_from


BEGINNING: Final = (1, 1)
"""The index and the term of the entry with which a range begins that a split makes."""


class HardState(msgspec.Struct, array_like=True, frozen=True):
    """The durable state of a member besides its entries."""

    term: int
    vote: NodeId | None
    base_index: int
    base_term: int
    members: Members
    won_alone: bool


encode = msgspec.msgpack.Encoder().encode
_decode_hard_state = msgspec.msgpack.Decoder(HardState).decode
_decode_members = msgspec.msgpack.Decoder(Members).decode
_decode_applied_members = msgspec.msgpack.Decoder(tuple[int, Members]).decode


def membership_payload(members: Members) -> bytes:
    """Return the payload of an entry that makes ``members`` the group."""
    return MEMBERSHIP + encode(members)


def is_payload(payload: bytes) -> bool:
    """Return whether ``payload`` can stand in a log."""
    if payload[:1] in (COMMAND, NOOP):
        return True
    try:
        members = members_in(payload)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return False
    return members is not None and members.is_sound


def members_in(payload: bytes) -> Members | None:
    """Return the members that an entry sets, or ``None`` if it sets none."""
    return _decode_members(payload[1:]) if payload[:1] == MEMBERSHIP else None


def replays(engine: Engine) -> bool:
    """Return whether ``engine`` keeps entries apart from the state."""
    return getattr(engine, "replays", False)


Origin: TypeAlias = tuple[int, int]
"""An entry of another group: its group, and its index."""


def stage_beginning(
    prefix: bytes,
    members: Members,
    origin: Origin,
    promised: tuple[int, NodeId | None],
    staged: WriteSet,
) -> None:
    """Stage the log of a group that begins with ``members``, at ``BEGINNING``.

    Args:
        prefix: the group's key prefix.
        members: the first members.
        origin: the entry that begins it.
        promised: a term in which this node has been, 0 if none, and its vote there.
        staged: the write set, which has the state, too.
    """
    (index, index_term), (term, vote) = BEGINNING, promised
    hard = HardState(max(term, index_term), vote, index, index_term, members, won_alone=False)
    staged[prefix + b"h"] = encode(hard)
    staged[prefix + b"m"] = encode((index, members))
    staged[prefix + b"o"] = b"".join(map(pack_u64, origin))


def read_hard_state(stored: ValueReader, prefix: bytes) -> HardState | None:
    """Return the hard state in the log of a group; ``None``: there is none.

    Raises:
        StoreCorrupted: it is unreadable.
    """
    packed = stored.get(prefix + b"h")
    try:
        return None if packed is None else _decode_hard_state(packed)
    except (ValueError, msgspec.DecodeError) as error:
        raise _corrupted(prefix, f"the hard state is unreadable ({error})") from error


def origins(engine: Engine) -> dict[int, int]:
    """Return the last entry of each group that has begun the log of another one."""
    found: dict[int, int] = {}
    for key, stored in engine.iterate(keys.RAFT_LOG, keys.RANGE):
        if key[9:] == b"o":
            group, index = unpack_u64(stored)[0], unpack_u64(stored, 8)[0]
            found[group] = max(index, found.get(group, 0))
    return found


@dataclass(frozen=True, slots=True)
class AppliedState:
    """The progress of the state.

    Attributes:
        index: the last entry that it includes.
        term: the term of that entry; ``None``: unknown.
        members: the members at that entry, if a snapshot tells them.
    """

    index: int
    term: int | None = None
    members: Members | None = None


@dataclass
class StoredLog:
    """The stored log of one group, as it is read.

    Attributes:
        members: the members at the base, and since which index.
        committed: an entry that is known to be committed.
        removed: entries that are still stored and count no more.
        is_outdated: whether the hard state has to be stored again.
        infers_term: whether the term is known only from the last entry, or from the state.
        tombstone: the tombstone of an earlier replica; ``None``: there was none.
    """

    prefix: bytes
    members: tuple[int, Members]
    term: int = 0
    vote: NodeId | None = None
    won_alone: bool = False
    hard_base_index: int = 0
    base: tuple[int, int] = (0, 0)
    entries: list[LogEntry] = field(default_factory=list)
    committed: int = 0
    removed: list[int] = field(default_factory=list)
    is_outdated: bool = False
    infers_term: bool = False
    tombstone: Tombstone | None = None

    @property
    def last(self) -> tuple[int, int]:
        """Return the index and the term of the newest entry."""
        return self.entries[-1][1:] if self.entries else self.base

    def read(self, engine: Engine, applied: AppliedState) -> None:
        """Read the log that ``engine`` contains, and reconcile it with the state."""
        self._take_hard_state(read_hard_state(engine, self.prefix))
        entries = engine.iterate(self.prefix + b"l", self.prefix + b"m")
        decoded = [self._decode_entry(key, value) for key, value in entries]
        if self.tombstone is not None and self.is_outdated:  # remains of the destroyed replica
            decoded = []
        if replays(engine):
            self._read_base(engine.get(self.prefix + b"b"))
            self._read_replayed(decoded, applied)
            self._meet_replayed(applied, engine)
        else:
            self._append(decoded)
            self._meet(applied.index)
        if self.term < self.last[1]:  # this term's record was lost with the power
            self.term, self.vote, self.won_alone = self.last[1], None, False
            self.infers_term = True

    def _take_hard_state(self, hard: HardState | None) -> None:
        if hard is None:
            self.is_outdated = True
            if self.tombstone is not None:
                self.term, self.vote = self.tombstone.term, self.tombstone.vote
            return
        self.term, self.vote, self.won_alone = hard.term, hard.vote, hard.won_alone
        self.hard_base_index = hard.base_index
        self.base = hard.base_index, hard.base_term
        self.members = hard.base_index, hard.members

    def _decode_entry(self, key: bytes, value: bytes) -> LogEntry:
        prefix = len(self.prefix) + 1
        if len(key) != prefix + 8 or len(value) < 9:
            raise self._corrupted(f"an entry of {len(value)} bytes is too short, or misplaced")
        index = unpack_u64(key, prefix)[0]
        if not is_payload(value[8:]):
            raise self._corrupted(f"entry {index} is unreadable")
        return value[8:], index, unpack_u64(value)[0]

    def _append(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            last_index, last_term = self.last
            if entry[1] != last_index + 1:
                raise self._corrupted(
                    f"entry {last_index + 1} is missing, {entry[1]} follows {last_index}"
                )
            if entry[2] < last_term:
                raise self._corrupted(
                    f"the term falls from {last_term} to {entry[2]} at entry {entry[1]}"
                )
            self.entries.append(entry)

    def _meet(self, applied_index: int) -> None:
        """Reconcile log and applied state on an engine that writes them together."""
        if applied_index < self.base[0]:
            raise self._corrupted(
                f"it begins after entry {self.base[0]} but the state ends at {applied_index}"
            )
        if applied_index <= self.last[0]:
            return
        if self.entries:
            raise self._corrupted(
                f"it ends at entry {self.last[0]} but the state includes entry {applied_index}"
            )
        # The base moved on without a hard state: it is of the current term, see the journal.
        self.base = applied_index, self.term

    # Reading where entries are replayed.

    def _read_base(self, stored: bytes | None) -> None:
        """Take the later one of the two bases. Members were noted whenever one passed theirs."""
        if stored is not None:
            if len(stored) != 16:
                raise self._corrupted("its base is unreadable")
            index, term = unpack_u64(stored)[0], unpack_u64(stored, 8)[0]
            self.base = max(self.base, (index, term))
        self.committed = self.base[0]

    def _read_replayed(self, entries: list[LogEntry], applied: AppliedState) -> None:
        """Take the entries after the base, or after the state's last one if that is earlier.

        Older ones may be there as well, with gaps: remains of segments that are not needed.
        """
        if applied.index < self.base[0]:
            known = next((entry for entry in entries if entry[1] == applied.index), None)
            following = [entry for entry in entries if entry[1] > applied.index]
            reaches = len(following) >= self.base[0] - applied.index
            term = known[2] if known else applied.term
            if not reaches or (applied.index and term is None):
                raise self._corrupted(
                    f"the state ends at entry {applied.index}, but was durable up to {self.base[0]}"
                )
            self.base = applied.index, term or 0
        self._append(entry for entry in entries if entry[1] > self.base[0])

    def _meet_replayed(self, applied: AppliedState, engine: Engine) -> None:
        """Let the log go on after the state, if the state is ahead."""
        index, term = applied.index, applied.term
        own = self._term_at(index)
        if own is not None and term in (own, None):
            return
        self.removed = [entry[1] for entry in self.entries]
        members = applied.members or self._applied_members(engine.get(self.prefix + b"m"), index)
        self.base = index, max(self.term, self.last[1]) if term is None else term
        self.members = index, members
        self.entries = []
        self.is_outdated = True

    def _term_at(self, index: int) -> int | None:
        if index == self.base[0]:
            return self.base[1]
        offset = index - self.base[0] - 1
        return self.entries[offset][2] if 0 <= offset < len(self.entries) else None

    def _applied_members(self, stored: bytes | None, applied_index: int) -> Members:
        """Return the newest members that log or state know of, up to the applied index."""
        since, members = self.members
        for payload, index, _ in self.entries:
            if index <= applied_index and (found := members_in(payload)) is not None:
                since, members = index, found
        if stored is None:
            return members
        try:
            index, applied = _decode_applied_members(stored)
        except (ValueError, msgspec.DecodeError) as error:
            raise self._corrupted(f"the members are unreadable ({error})") from error
        return applied if since <= index <= applied_index else members

    def _corrupted(self, what: str) -> StoreCorrupted:
        return _corrupted(self.prefix, what)


def _corrupted(prefix: bytes, what: str) -> StoreCorrupted:
    return StoreCorrupted(
        f"raft log {prefix.hex()}: {what}; restore this node from the others, or from a backup"
    )
