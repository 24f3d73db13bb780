"""The log of one group, on the node's engine.

Layout, under the group's prefix (the keyspace page is ``kv/keys.py``)::

    prefix | "h"                  hard state: term, vote, where the log begins, members there
    prefix | "l" | index (8)      one entry: term (8), payload

In memory the log is a list that starts with a *base*: the place, without payload, of the last entry
that was dropped because every member has it or a snapshot stands for it::

    base            entries
    (i, t)   (i+1, t1, payload) (i+2, t2, payload) ...

Nothing is written here: changes are staged into the write set of the turn (``writes``), which the
node syncs before anything that speaks of it is sent. An entry that is added and dropped within one
turn leaves no trace in the write set.

Invariants:

* Indices are contiguous; terms never fall along the log.
* The log is never cut at or below the commit index, nor dropped beyond the applied index.
* The stored hard state names the base, unless no entry is stored and the base is of the current
  term. Then the base is the applied index: a group of one drops each entry in the turn that
  applies it, and need not write a hard state for that.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv.engine import Engine, WriteSet
from postroom.raft.membership import Members, NodeIds
from postroom.raft.state_machine import NodeId

FORMAT_VERSION: Final = 2
"""Version 1 knew voters only: its hard state ends with them, its membership entries list them."""

FORMAT_VERSION_JOINT: Final = 3
"""Version 3 knows joint members as well. It is written only while the base's members are joint."""

FORMAT_VERSIONS_READ: Final = (1, 2, 3)

ENTRIES_VERSION: Final = 1
"""Which entries this program can read: with 1, joint members. Before, the number was not told."""

COMMAND: Final = b"\x00"
NOOP: Final = b"\x01"
VOTERS: Final = b"\x02"
MEMBERSHIP: Final = b"\x03"
JOINT: Final = b"\x04"
"""First byte of a payload: a proposal, a leader's first entry, or a new set of members (``VOTERS``
in format 1: read, not written). Joint members have a kind of their own, so that a program that does
not know them refuses the entry, instead of taking it for another set."""

LogEntry: TypeAlias = tuple[bytes, int, int]
"""Payload, index, term: the order that pysyncobj uses."""

_pack_u64 = struct.Struct(">Q").pack
_unpack_u64 = struct.Struct(">Q").unpack_from


class HardState(msgspec.Struct, array_like=True, frozen=True):
    """What a member must not forget besides its entries."""

    version: int
    term: int
    vote: NodeId | None
    base_index: int
    base_term: int
    voters: NodeIds
    learners: NodeIds = ()
    outgoing: NodeIds = ()
    won_alone: bool = False


class _Versioned(msgspec.Struct, array_like=True, frozen=True):
    """What every version of a record begins with."""

    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_hard_state = msgspec.msgpack.Decoder(HardState).decode
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode
_decode_members = msgspec.msgpack.Decoder(Members).decode
_decode_voters = msgspec.msgpack.Decoder(NodeIds).decode


def membership_payload(members: Members) -> bytes:
    """The payload of an entry that makes ``members`` the group."""
    if members.is_joint:
        return JOINT + _encode(members)
    return MEMBERSHIP + _encode((members.voters, members.learners))


def is_payload(payload: bytes) -> bool:
    """Whether ``payload`` can stand in a log."""
    if payload[:1] in (COMMAND, NOOP):
        return True
    try:
        members = members_in(payload)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return False
    return members is not None and members.is_sound


def members_in(payload: bytes) -> Members | None:
    """The members that an entry sets, if it is one that does."""
    if payload[:1] in (MEMBERSHIP, JOINT):
        return _decode_members(payload[1:])
    return Members(_decode_voters(payload[1:])) if payload[:1] == VOTERS else None


class Journal:
    """One group's log and hard state. Open it, then give it ``writes`` before each turn."""

    def __init__(self, prefix: bytes, members: Members) -> None:
        """An empty log under ``prefix``; see :meth:`open`."""
        self._hard_key = prefix + b"h"
        self._entry_prefix = prefix + b"l"
        self._entries: list[LogEntry] = [(b"", 0, 0)]
        self._members: list[tuple[int, Members]] = [(0, members)]
        self._durable = range(0)
        self._hard_state_changed = False
        self._hard_base_index = 0
        self.writes: WriteSet = {}
        self.needs_sync = False
        """Whether what is staged in this turn must be durable before anybody hears of it."""
        self.enters_term = False
        """Whether term or vote are among it."""
        self.bytes_kept = 0
        self.term = 0
        self.vote: NodeId | None = None
        self.won_alone = False
        """Whether this member leads ``term``: it was the only voter when it entered it."""

    # Reading.

    @property
    def base_index(self) -> int:
        """Index of the last entry that is no longer kept."""
        return self._entries[0][1]

    @property
    def last_index(self) -> int:
        """Index of the newest entry."""
        return self._entries[-1][1]

    @property
    def last_term(self) -> int:
        """Term of the newest entry."""
        return self._entries[-1][2]

    @property
    def members(self) -> Members:
        """The newest set of members in the log, committed or not (dissertation, section 4.1)."""
        return self._members[-1][1]

    @property
    def members_index(self) -> int:
        """Index of the entry that set ``members``."""
        return self._members[-1][0]

    def __len__(self) -> int:
        """How many entries are kept, besides the base."""
        return len(self._entries) - 1

    def members_at(self, index: int) -> Members:
        """The members as of the entry at ``index``."""
        return next(who for since, who in reversed(self._members) if since <= index)

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``, which may be the base; ``None`` if not in the log."""
        offset = index - self._entries[0][1]
        if 0 <= offset < len(self._entries):
            return self._entries[offset][2]
        return None

    def entries(self, first: int, last: int) -> list[LogEntry]:
        """The entries from ``first`` to ``last``, both included, as far as they are kept."""
        base = self._entries[0][1]
        return self._entries[max(first - base, 1) : max(last - base + 1, 1)]

    def batch(self, first: int, bytes_max: int) -> list[LogEntry]:
        """Entries from ``first`` on: as many as ``bytes_max`` allows, and at least one."""
        taken: list[LogEntry] = []
        for offset in range(max(first - self.base_index, 1), len(self._entries)):
            entry = self._entries[offset]
            bytes_max -= len(entry[0])
            if bytes_max < 0 and taken:
                break
            taken.append(entry)
        return taken

    def first_index_of_term_at(self, index: int) -> int:
        """The first index that is kept of the run of equal terms that ``index`` is in."""
        term = self.term_at(index)
        while index > self.base_index + 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    # Staging.

    def begin(self, writes: WriteSet) -> None:
        """A turn begins: changes go to ``writes``."""
        self.writes = writes
        self.needs_sync = self.enters_term = False
        self._durable = range(self._entries[0][1] + 1, self._entries[-1][1] + 1)

    def end(self) -> None:
        """The turn's changes are complete: stage the hard state if it matters and changed."""
        _, base_index, base_term = self._entries[0]
        moved = base_index != self._hard_base_index
        matters = len(self._entries) > 1 or base_term != self.term
        if self._hard_state_changed or (moved and matters):
            self._hard_state_changed = False
            self._hard_base_index = base_index
            self.writes[self._hard_key] = self._hard_state(base_index, base_term)

    def _hard_state(self, base_index: int, base_term: int) -> bytes:
        members = self._members[0][1]
        place = (self.term, self.vote, base_index, base_term, members.voters, members.learners)
        version = FORMAT_VERSION_JOINT if members.is_joint else FORMAT_VERSION
        return _encode((version, *place, members.outgoing, self.won_alone))

    def set_term(self, term: int, vote: NodeId | None) -> None:
        """Enter ``term``, having voted for ``vote``."""
        assert term >= self.term, f"term falls from {self.term} to {term}"
        self.term = term
        self.vote = vote
        self.won_alone = False
        self._hard_state_changed = self.needs_sync = self.enters_term = True

    def add(self, payload: bytes, index: int, term: int) -> None:
        """Append an entry at the end."""
        _, last_index, last_term = self._entries[-1]
        assert index == last_index + 1, f"entry {index} after {last_index}"
        assert term >= last_term, f"term falls from {last_term} to {term} at {index}"
        self._remember((payload, index, term))
        self.writes[self._entry_prefix + _pack_u64(index)] = _pack_u64(term) + payload
        self.needs_sync = True

    def cut(self, index: int) -> None:
        """Remove the entries from ``index`` on: they conflict with the leader's."""
        offset = index - self.base_index
        assert offset > 0, f"cut at {index}, base is {self.base_index}"
        self._unstage(self._entries[offset:])
        del self._entries[offset:]
        while self._members[-1][0] >= index:
            self._members.pop()

    def drop(self, index: int) -> None:
        """Let go of the entries up to ``index``, which becomes the base."""
        offset = index - self.base_index
        if offset <= 0:
            return
        gone = self._entries[1 : offset + 1]
        self._unstage(gone)
        self._entries[: offset + 1] = [(b"", index, gone[-1][2])]
        self._forget_members_before(index)

    def pass_over(self, index: int, term: int) -> None:
        """The empty log of a group of one moves on to ``index``, applied in this turn."""
        assert len(self._entries) == 1
        self._entries[0] = (b"", index, term)

    def restart(self, index: int, term: int, members: Members) -> None:
        """Replace the whole log by a snapshot that ends with the entry (``index``, ``term``)."""
        self._unstage(self._entries[1:])
        self._entries = [(b"", index, term)]
        self._members = [(index, members)]
        self._hard_state_changed = self.needs_sync = True

    def erase(self, engine: Engine) -> None:
        """Stage the removal of everything: the replica leaves this node."""
        for key, _ in engine.iterate(self._entry_prefix, self._entry_prefix[:-1] + b"m"):
            self.writes[key] = None
        for _, index, _ in self._entries[1:]:
            self.writes.setdefault(self._entry_prefix + _pack_u64(index), None)
        self.writes[self._hard_key] = None

    def _remember(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self.bytes_kept += len(entry[0])
        if entry[0][:1] > NOOP:
            members = members_in(entry[0])
            assert members is not None, "checked when it came, and when it was read"
            self._members.append((entry[1], members))

    def _unstage(self, gone: list[LogEntry]) -> None:
        """Stage the removal of entries; those of this very turn just leave the write set."""
        for payload, index, _ in gone:
            self.bytes_kept -= len(payload)
            key = self._entry_prefix + _pack_u64(index)
            if index in self._durable:
                self.writes[key] = None
            else:
                self.writes.pop(key, None)

    def _forget_members_before(self, index: int) -> None:
        while len(self._members) > 1 and self._members[1][0] <= index:
            del self._members[0]
            self._hard_state_changed = True

    # Opening.

    @classmethod
    def open(
        cls,
        engine: Engine,
        prefix: bytes,
        members: Members,
        applied_index: int,
    ) -> Journal:
        """The log as ``engine`` holds it.

        Args:
            engine: where it lies.
            prefix: the group's key prefix.
            members: the group's first members, used if the log is new.
            applied_index: the last entry that the state includes.

        Raises:
            StoreCorrupted: entries are missing, misplaced or unreadable.
            VersionMismatch: a later version of this format.
        """
        journal = cls(prefix, members)
        journal._read_hard_state(engine.get(journal._hard_key))
        upper = journal._entry_prefix[:-1] + b"m"
        stored = list(engine.iterate(journal._entry_prefix, upper))
        journal._read_entries(stored)
        journal._meet(applied_index)
        journal.won_alone = journal.won_alone and journal.last_term == journal.term
        journal.term = max(journal.term, journal.last_term)
        return journal

    def _read_hard_state(self, stored: bytes | None) -> None:
        if stored is None:
            self._hard_state_changed = True
            return
        try:
            version = _decode_version(stored).version
            if version not in FORMAT_VERSIONS_READ:
                raise VersionMismatch(
                    f"raft log format {version}, this program knows {FORMAT_VERSION}"
                )
            hard = _decode_hard_state(stored)
        except (ValueError, msgspec.DecodeError) as error:
            raise self._corrupted(f"the hard state is unreadable ({error})") from error
        self.term, self.vote, self.won_alone = hard.term, hard.vote, hard.won_alone
        self._hard_base_index = hard.base_index
        self._entries = [(b"", hard.base_index, hard.base_term)]
        self._members = [(hard.base_index, Members(hard.voters, hard.learners, hard.outgoing))]

    def _read_entries(self, stored: list[tuple[bytes, bytes]]) -> None:
        for key, value in stored:
            entry = self._decode_entry(key, value)
            if entry[1] != self.last_index + 1:
                raise self._corrupted(
                    f"entry {self.last_index + 1} is missing, {entry[1]} follows {self.last_index}"
                )
            if entry[2] < self.last_term:
                raise self._corrupted(
                    f"the term falls from {self.last_term} to {entry[2]} at entry {entry[1]}"
                )
            self._remember(entry)

    def _decode_entry(self, key: bytes, value: bytes) -> LogEntry:
        if len(key) != len(self._entry_prefix) + 8 or len(value) < 9:
            raise self._corrupted(f"an entry of {len(value)} bytes is too short, or misplaced")
        index = _unpack_u64(key, len(self._entry_prefix))[0]
        if not is_payload(value[8:]):
            raise self._corrupted(f"entry {index} is unreadable")
        return value[8:], index, _unpack_u64(value)[0]

    def _meet(self, applied_index: int) -> None:
        """Bring log and applied state together."""
        if applied_index < self.base_index:
            raise self._corrupted(
                f"it begins after entry {self.base_index} but the state ends at {applied_index}"
            )
        if applied_index <= self.last_index:
            return
        if len(self):
            raise self._corrupted(
                f"it ends at entry {self.last_index} but the state includes entry {applied_index}"
            )
        # The base moved on without a hard state: it is of the current term, see the invariants.
        self._entries = [(b"", applied_index, self.term)]

    def _corrupted(self, what: str) -> StoreCorrupted:
        return StoreCorrupted(
            f"raft log {self._entry_prefix[:-1].hex()}: {what}; "
            "restore this node from the others, or from a backup"
        )
