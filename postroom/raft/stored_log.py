"""What a group's log looks like on the engine, and how it is read when the group is opened.

Layout, under the group's prefix (the keyspace page is ``kv/keys.py``)::

    prefix | "h"                  hard state: term, vote, where the log begins, members there
    prefix | "l" | index (8)      one entry: term (8), payload
    prefix | "b"                  up to where nobody needs entries: index (8), term (8)
    prefix | "a"                  the entry that was applied last: index (8), term (8)
    prefix | "m"                  the members that an applied entry has set: index, members

There are two kinds of engine. On a plain one a turn is one atomic write: what is applied can be
removed in the same turn, and the last three records are not needed.

One that ``replays`` (:mod:`postroom.kv.storage`) has the first three in a log and the others with
the state, and either may have got farther than the other one:

* The state lacks something: the entries are in the log, and are applied again. Those between the
  two bases are known to be committed.
* The state is ahead: the last turn was cut short, having reached the state only. What it applied
  was committed (only what is committed is applied; in a group of one, what is written is), so the
  log goes on after it as after a snapshot; index, term and members are told by the state. That a
  vote or an entry of that turn is lost does not matter: nobody was told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv.engine import Engine
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

pack_u64 = struct.Struct(">Q").pack
pack_place = struct.Struct(">QQ").pack
"""Index and term."""
unpack_u64 = struct.Struct(">Q").unpack_from


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


encode = msgspec.msgpack.Encoder().encode
_decode_hard_state = msgspec.msgpack.Decoder(HardState).decode
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode
_decode_members = msgspec.msgpack.Decoder(Members).decode
_decode_applied_members = msgspec.msgpack.Decoder(tuple[int, Members]).decode
_decode_voters = msgspec.msgpack.Decoder(NodeIds).decode


def membership_payload(members: Members) -> bytes:
    """The payload of an entry that makes ``members`` the group."""
    if members.is_joint:
        return JOINT + encode(members)
    return MEMBERSHIP + encode((members.voters, members.learners))


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


def replays(engine: Engine) -> bool:
    """Whether ``engine`` keeps entries apart from the state."""
    return getattr(engine, "replays", False)


@dataclass(frozen=True, slots=True)
class Applied:
    """How far the state has come.

    Attributes:
        index: the last entry that it includes.
        term: of that entry; ``None``: unknown.
        members: as of that entry, where a snapshot tells.
    """

    index: int
    term: int | None = None
    members: Members | None = None


@dataclass
class StoredLog:
    """What is read of one group's log.

    Attributes:
        members: at the base, and since which index.
        committed: an entry that is known to be committed.
        removed: entries that are still stored and count no more.
        is_outdated: the hard state has to be stored again.
        settles: the state does not tell its term yet, and has to before the log goes on.
        infers_term: the term is that of the last entry, or of the state: it stands nowhere else.
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
    settles: bool = False
    infers_term: bool = False

    @property
    def last(self) -> tuple[int, int]:
        """Index and term of the newest entry."""
        return self.entries[-1][1:] if self.entries else self.base

    def read(self, engine: Engine, applied: Applied) -> None:
        """Read what ``engine`` holds, and bring it together with the state."""
        self._read_hard_state(engine.get(self.prefix + b"h"))
        entries = engine.iterate(self.prefix + b"l", self.prefix + b"m")
        decoded = [self._decode_entry(key, value) for key, value in entries]
        if replays(engine):
            applied = self._with_term(applied, engine.get(self.prefix + b"a"))
            self._read_base(engine.get(self.prefix + b"b"))
            self._read_replayed(decoded, applied)
            self._meet_replayed(applied, engine)
        else:
            self._append(decoded)
            self._meet(applied.index)
        if self.term < self.last[1]:  # the record of this term was lost with the power
            self.term, self.vote, self.won_alone = self.last[1], None, False
            self.infers_term = True

    def _read_hard_state(self, stored: bytes | None) -> None:
        if stored is None:
            self.is_outdated = True
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
        self.hard_base_index = hard.base_index
        self.base = hard.base_index, hard.base_term
        self.members = hard.base_index, Members(hard.voters, hard.learners, hard.outgoing)

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
        """Bring log and applied state together, where they are written together."""
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

    # Where entries are replayed.

    def _with_term(self, applied: Applied, stored: bytes | None) -> Applied:
        """The record tells the term, unless another entry was applied without it."""
        if stored is None or applied.term is not None or unpack_u64(stored)[0] != applied.index:
            return applied
        return Applied(applied.index, unpack_u64(stored, 8)[0])

    def _read_base(self, stored: bytes | None) -> None:
        """Take the later one of the two bases. Members were noted whenever one passed theirs."""
        if stored is not None:
            if len(stored) != 16:
                raise self._corrupted("its base is unreadable")
            index, term = unpack_u64(stored)[0], unpack_u64(stored, 8)[0]
            self.base = max(self.base, (index, term))
        self.committed = self.base[0]

    def _read_replayed(self, entries: list[LogEntry], applied: Applied) -> None:
        """The entries after the base, or after what the state includes, if that ends before.

        Older ones may be there as well, with gaps: what is left of parts that nobody needs.
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

    def _meet_replayed(self, applied: Applied, engine: Engine) -> None:
        """Where the state is ahead, the log goes on from there."""
        index, term = applied.index, applied.term
        own = self._term_at(index)
        self.settles = bool(index) and applied.term is None
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
        """The newest members that log or state know of, up to what is applied."""
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
        return StoreCorrupted(
            f"raft log {self.prefix.hex()}: {what}; "
            "restore this node from the others, or from a backup"
        )
