"""The log of one group, on the node's engine.

In memory the log is a list that starts with a *base*: the place, without payload, of the last entry
that was dropped. Every member has that entry, or a snapshot stands for it::

    base            entries
    (i, t)   (i+1, t1, payload) (i+2, t2, payload) ...

Stores of one kind replay entries into the state after a crash (:mod:`.stored_log`). They write
entries even if they are applied at once, and do not remove those that are dropped: the storage
frees them, by whole segments.

Nothing is written here: changes are staged into the write set of the turn (``writes``), which the
node syncs before any message about them is sent. An entry that is added and dropped within one
turn leaves no trace in the write set.

Invariants:

* Indices are contiguous; terms never fall along the log.
* The log is never cut at or below the commit index, nor dropped beyond the applied index.
* A replica that *holds nothing* has no entries and knows of no members. A provisional one may be
  forgotten. It stores a hard state only with a vote, which stays when the replica is forgotten.
* The stored hard state names the base, unless no entry is stored and the base is of the current
  term. Then the base is the applied index: a group of one drops each entry in the turn that
  applies it, and need not write a hard state for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from postroom.kv.engine import Engine, WriteSet
from postroom.kv.log_writer import RetainedLog
from postroom.raft.interface import NodeId
from postroom.raft.membership import Members
from postroom.raft.stored_log import (
    COMMAND,
    NOOP,
    AppliedState,
    HardState,
    LogEntry,
    StoredLog,
    encode,
    members_in,
    pack_u64,
    replays,
)
from postroom.raft.tombstones import read_tombstone


class Journal:
    """The log and the hard state of one group. It needs ``writes`` before each turn.

    Attributes:
        base_index: the index of the last entry that is no longer kept.
        last_index: the index of the newest entry.
    """

    def __init__(self, prefix: bytes, members: Members, *, replays: bool = False) -> None:
        """Create an empty log under ``prefix``; see :meth:`open`."""
        self.replays = replays
        """True if entries are applied again after a crash, and must therefore be stored."""
        self.committed_index = 0
        """The index of an entry that was known to be committed when the log was opened."""
        self._prefix = prefix
        self._removed: list[int] = []
        self._hard_key = prefix + b"h"
        self._entry_prefix = prefix + b"l"
        self._entries: list[LogEntry] = [(b"", 0, 0)]
        self.base_index = self.last_index = 0
        self._members: list[tuple[int, Members]] = [(0, members)]
        self._durable = range(0)
        self._hard_state_changed = False
        self._hard_base_index = 0
        self.writes: WriteSet = {}
        self.needs_sync = False
        """True if the writes of this turn must be durable before another member hears of them."""
        self.enters_term = False
        """True if the writes of this turn include the term or the vote."""
        self._infers_term = False
        """True if the term is not stored yet. No message may name it before it is durable."""
        self.is_at_rest = False
        """True if a turn of a group of one needs neither ``begin`` nor ``end``.

        Entries that are applied at once only pass through this log, which keeps nothing and has
        nothing left to write.
        """
        self.bytes_kept = 0
        self.term = 0
        self.vote: NodeId | None = None
        self.won_alone = False
        """True if this member leads ``term`` because it was the only voter when it entered it."""
        self.is_provisional = False
        """True if a replica that holds nothing may be forgotten."""
        self.least_index = 0
        """The index from which on a former member that comes back counts (:mod:`.tombstones`)."""

    # Reading.

    @property
    def last_term(self) -> int:
        """Return the term of the newest entry."""
        return self._entries[-1][2]

    @property
    def members(self) -> Members:
        """Return the newest members in the log, committed or not (dissertation, section 4.1)."""
        return self._members[-1][1]

    @property
    def members_index(self) -> int:
        """Return the index of the entry that set ``members``."""
        return self._members[-1][0]

    @property
    def holds_nothing(self) -> bool:
        """Return whether there is nothing here: no entry, no state, and no known member."""
        return not self.last_index and not self.members.voters

    @property
    def promises_nothing(self) -> bool:
        """Return whether this replica may be forgotten, and has no vote to store.

        The tombstone of a former member has its vote.
        """
        has_voted = self.vote is not None and not self.least_index
        return self.is_provisional and self.holds_nothing and not has_voted

    def __len__(self) -> int:
        """Return how many entries are kept, besides the base."""
        return len(self._entries) - 1

    def members_at(self, index: int) -> Members:
        """Return the members at the time of the entry at ``index``."""
        return next(who for since, who in reversed(self._members) if since <= index)

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``, or ``None`` if it is not in the log.

        The base counts as an entry.
        """
        offset = index - self.base_index
        if 0 <= offset < len(self._entries):
            return self._entries[offset][2]
        return None

    def entries(self, first: int, last: int) -> list[LogEntry]:
        """Return the entries from ``first`` to ``last``, both included, as far as they are kept."""
        base = self.base_index
        return self._entries[max(first - base, 1) : max(last - base + 1, 1)]

    def batch(self, first: int, bytes_max: int, entries_max: int | None = None) -> list[LogEntry]:
        """Return the entries from ``first`` on: as many as both limits allow, and at least one."""
        taken: list[LogEntry] = []
        for offset in range(max(first - self.base_index, 1), len(self._entries))[:entries_max]:
            entry = self._entries[offset]
            bytes_max -= len(entry[0])
            if bytes_max < 0 and taken:
                break
            taken.append(entry)
        return taken

    def first_index_of_term_at(self, index: int) -> int:
        """Return the first index that is kept of the run of equal terms that ``index`` is in."""
        term = self.term_at(index)
        while index > self.base_index + 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    def know_committed(self, index: int) -> None:
        """Note that the entry at ``index``, if it is here, is committed."""
        self.committed_index = max(self.committed_index, min(index, self.last_index))

    # Staging.

    def begin(self, writes: WriteSet) -> None:
        """Begin a turn, whose changes go to ``writes``."""
        self.writes = writes
        self.is_at_rest = False
        self.needs_sync = self.enters_term = self._infers_term
        self._infers_term = False
        self._durable = range(self.base_index + 1, self.last_index + 1)
        for index in self._removed:
            writes[self._entry_prefix + pack_u64(index)] = None
        self._removed = []

    def end(self) -> None:
        """End the turn: stage the hard state if it matters and has changed."""
        _, base_index, base_term = self._entries[0]
        moved = base_index != self._hard_base_index
        matters = not self.replays and (len(self._entries) > 1 or base_term != self.term)
        if (self._hard_state_changed and not self.promises_nothing) or (moved and matters):
            self._hard_state_changed = False
            self._hard_base_index = base_index
            self.writes[self._hard_key] = self._hard_state(base_index, base_term)
        self.is_at_rest = self.replays and len(self._entries) == 1

    def _hard_state(self, base_index: int, base_term: int) -> bytes:
        members = self._members[0][1]
        return encode(
            HardState(self.term, self.vote, base_index, base_term, members, self.won_alone)
        )

    def set_term(self, term: int, vote: NodeId | None) -> None:
        """Enter ``term``, having voted for ``vote``."""
        assert term >= self.term, f"term falls from {self.term} to {term}"
        self.term = term
        self.vote = vote
        self.won_alone = False
        self._hard_state_changed = self.needs_sync = self.enters_term = True

    def add(self, payload: bytes, index: int, term: int) -> None:
        """Append an entry at the end."""
        assert index == self.last_index + 1, f"entry {index} after {self.last_index}"
        assert term >= self.last_term, f"term falls from {self.last_term} to {term} at {index}"
        self._remember((payload, index, term))
        self.writes[self._entry_prefix + pack_u64(index)] = pack_u64(term) + payload
        self.needs_sync = True

    def cut(self, index: int) -> None:
        """Remove the entries from ``index`` on, which conflict with the leader's."""
        offset = index - self.base_index
        assert offset > 0, f"cut at {index}, base is {self.base_index}"
        self._unstage(self._entries[offset:])
        del self._entries[offset:]
        self.last_index = index - 1
        while self._members[-1][0] >= index:
            self._members.pop()

    def drop(self, index: int) -> None:
        """Drop the entries up to ``index``, which becomes the base."""
        offset = index - self.base_index
        if offset <= 0:
            return
        gone = self._entries[1 : offset + 1]
        if self.replays:
            for payload, _, _ in gone:
                self.bytes_kept -= len(payload)
        else:
            self._unstage(gone)
        self._entries[: offset + 1] = [(b"", index, gone[-1][2])]
        self.base_index = index
        if len(self._members) > 1:
            self._forget_members_before(index)

    def note(self, command: bytes, index: int, term: int, writes: WriteSet) -> None:
        """Do ``write_only`` and ``pass_over`` in one step, for a log that is at rest."""
        writes[self._entry_prefix + pack_u64(index)] = b"".join((pack_u64(term), COMMAND, command))
        self._entries[0] = (b"", index, term)
        self.base_index = self.last_index = index

    def pass_over(self, index: int, term: int) -> None:
        """Move the empty log of a group of one on to ``index``, applied in this turn."""
        assert len(self._entries) == 1
        self._begin_at(index, term)

    def write_only(self, command: bytes, index: int, term: int) -> None:
        """Stage a command that is applied in this turn, and that only a replay will read."""
        stored = b"".join((pack_u64(term), COMMAND, command))
        self.writes[self._entry_prefix + pack_u64(index)] = stored

    def members_applied(self, index: int) -> None:
        """Stage the members that the entry at ``index``, which is applied, has set."""
        if self.replays:
            self.writes[self._prefix + b"m"] = encode((index, self.members_at(index)))

    def retained(self) -> RetainedLog:
        """Return the part of the log that is kept, for the storage that frees the rest."""
        _, base_index, base_term = self._entries[0]
        return RetainedLog(self._entry_prefix, base_index, base_term, self.last_index, self._stored)

    def _stored(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for payload, index, term in self.entries(first, last):
            yield index, pack_u64(term) + payload

    def restart(self, index: int, term: int, members: Members) -> None:
        """Replace the whole log by a snapshot that ends with the entry (``index``, ``term``)."""
        self._unstage(self._entries[1:])
        self._begin_at(index, term)
        self._members = [(index, members)]
        self._hard_state_changed = self.needs_sync = True

    def erase(self, engine: Engine) -> None:
        """Stage the removal of everything: the replica leaves this node."""
        for key, _ in engine.iterate(self._entry_prefix, self._entry_prefix[:-1] + b"m"):
            self.writes[key] = None
        for _, index, _ in self._entries[1:]:
            self.writes.setdefault(self._entry_prefix + pack_u64(index), None)
        self.writes[self._hard_key] = None
        for kind in (b"a", b"b", b"m", b"o"):
            if engine.get(self._prefix + kind) is not None:
                self.writes[self._prefix + kind] = None

    def _begin_at(self, index: int, term: int) -> None:
        """Begin anew after the entry at ``index``: none is kept."""
        self._entries = [(b"", index, term)]
        self.base_index = self.last_index = index

    def _remember(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self.last_index = entry[1]
        self.bytes_kept += len(entry[0])
        if entry[0][:1] > NOOP:
            members = members_in(entry[0])
            assert members is not None, "checked when it came, and when it was read"
            self._members.append((entry[1], members))

    def _unstage(self, gone: list[LogEntry]) -> None:
        """Stage the removal of entries; those of this very turn just leave the write set."""
        for payload, index, _ in gone:
            self.bytes_kept -= len(payload)
            key = self._entry_prefix + pack_u64(index)
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
        cls, engine: Engine, prefix: bytes, members: Members, applied: AppliedState | int
    ) -> Journal:
        """Open the log that ``engine`` contains.

        Args:
            engine: the engine with the log.
            prefix: the group's key prefix.
            members: the group's first members, used if the log is new.
            applied: how far the state has come.

        Raises:
            StoreCorrupted: entries are missing, misplaced or unreadable.
        """
        if isinstance(applied, int):
            applied = AppliedState(applied)
        stored = StoredLog(prefix, (0, members), tombstone=read_tombstone(engine, prefix))
        stored.read(engine, applied)
        journal = cls(prefix, members, replays=replays(engine))
        journal.term, journal.vote = stored.term, stored.vote
        journal.committed_index = stored.committed
        journal.least_index = 0 if stored.tombstone is None else stored.tombstone.least_index
        journal._hard_base_index = stored.hard_base_index
        journal._hard_state_changed = stored.is_outdated or stored.infers_term
        journal._infers_term = stored.infers_term
        journal._removed = stored.removed
        journal._begin_at(*stored.base)
        journal._members = [(min(stored.members[0], stored.base[0]), stored.members[1])]
        for entry in stored.entries:
            journal._remember(entry)
        journal.won_alone = stored.won_alone and journal.last_term == journal.term
        return journal
