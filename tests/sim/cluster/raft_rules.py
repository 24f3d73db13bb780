"""The rules of the Raft paper (figure 3 and section 5), seen from outside the nodes.

* **Election safety**: at most one leader a term, ever.
* **Log matching**: two logs with an entry of equal index and term are equal up to it.
* **Leader completeness**: what was applied anywhere is in the log of every leader of a later term.
  (One of an earlier term may be elected after that, by votes that were long on their way.)
* **State machine safety**: no two members apply different entries at one index.
* **Persistence**: no member says what it could forget. When a vote, an answer to an append, or
  anything of a term is sent, the disk holds it in its synced part.
* **Durability**: what was applied anywhere is in the synced part of a majority's disks.

An applied entry is told by its index, its term, and a digest of what it changed. The rules hold for
each consensus group by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, SortedMap
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
)
from postroom.raft.snapshots import ArrivingSnapshot
from postroom.raft.stored_log import HardState
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.split.records import FIRST_ENTRY
from postroom.ranges.state import APPLIED_RECORD, decode_applied
from postroom.server.hosted_range import HostedRange
from tests.sim.checkers import Broken, require
from tests.sim.durable_views import DurableViews

if TYPE_CHECKING:
    from postroom.raft.journal import Journal
    from tests.sim.cluster.machine import Machine

Entry = tuple[int, bytes]
"""An applied entry: its term and digest."""


class Log:
    """The log of a range on a node after a loss of everything that is not synced.

    The first entry of a right half is in the log of the range that was split.

    Attributes:
        begins_after: the entry up to which the state is there.
    """

    def __init__(self, range_id: int, state: SortedMap, logged: WriteSet) -> None:
        self._logged, self._prefix = logged, keys.raft_log_prefix(range_id)
        stored = logged.get(self._prefix + b"h")
        hard = None if stored is None else msgspec.msgpack.decode(stored, type=HardState)
        first_index, first_term = (0, 0) if range_id == ROOT_ID else FIRST_ENTRY
        self.term: int = first_term if hard is None else hard.term
        self.vote: int | None = None if hard is None else hard.vote
        record = state.get(keys.record_key(range_id, APPLIED_RECORD))
        applied = 0 if record is None else decode_applied(record).index
        spool = state.get(self._prefix + b"s")
        arrived = None if spool is None else msgspec.msgpack.decode(spool, type=ArrivingSnapshot)
        installs = arrived is not None and arrived.chunks > 0
        self.begins_after = arrived.index if installs and arrived else max(applied, first_index)

    def covers(self, index: int, term: int | None = None) -> bool:
        """Return whether the entry at ``index`` is there, of ``term`` if that is given."""
        if index <= self.begins_after:
            return True
        stored = self._logged.get(self._prefix + b"l" + keys.u64(index))
        return stored is not None and term in (None, int.from_bytes(stored[:8], "big"))


class Logs:
    """The logs of all ranges on a disk after a loss of power."""

    def __init__(self, state: SortedMap, logged: WriteSet) -> None:
        self._read = state, logged
        self._known: dict[int, Log] = {}

    def of(self, range_id: int) -> Log:
        """Return the log of a range."""
        log = self._known.get(range_id)
        if log is None:
            log = self._known[range_id] = Log(range_id, *self._read)
        return log


class DurableLogs:
    """The logs that a loss of power leaves on disks, at least."""

    def __init__(self) -> None:
        self._views = DurableViews(Logs)

    def of(self, disk: MemoryDisk, range_id: int = ROOT_ID) -> Log:
        """Return what is left of the log of a range on ``disk``."""
        logs = self._views.of(disk)
        assert isinstance(logs, Logs)
        return logs.of(range_id)


class RaftRules:
    """The rules of the Raft paper, checked over all machines, for one group.

    Args:
        range_id: the id of its range.
        durable_logs: what is durable on the disks of the cluster.
        wiped: see below.

    Attributes:
        leaders: of each term.
        applied: every entry that any member has applied, once that was written.
        committed_by: for each of them a term in which it was committed already.
        voters: the members that there were, as far as they vote, by the index that set them.
        wiped: the nodes whose disks were lost.
    """

    def __init__(self, range_id: int, durable_logs: DurableLogs, wiped: set[int]) -> None:
        self.range_id = range_id
        self.leaders: dict[int, int] = {}
        self.applied: dict[int, Entry] = {}
        self.committed_by: dict[int, int] = {}
        self.newest = 0
        self.wiped = wiped
        self.voters: dict[int, set[tuple[frozenset[int], ...]]] = {}
        self._durable_logs = durable_logs
        self._applying: dict[str, list[tuple[int, Entry, int]]] = {}
        self._leads: dict[str, int] = {}

    # --- leaders

    def acted(self, machine: Machine) -> None:
        """Check that a leader leads alone, and has everything that was ever applied."""
        hosted = self._hosted(machine)
        if hosted is None:
            self._leads.pop(machine.name, None)
            return
        group = hosted.group
        term = group.term
        if not group.is_leader or self._leads.get(machine.name) == term:
            return
        self._leads[machine.name] = term
        leader = self.leaders.setdefault(term, machine.node_id)
        require(leader == machine.node_id, f"{leader} and {machine.node_id} lead term {term}")
        self._check_complete(machine, group.core.journal)

    def _hosted(self, machine: Machine) -> HostedRange | None:
        """Return the range on a machine; ``None``: the machine is down, or does not have it."""
        return None if machine.node is None else machine.node.replicas.hosted.get(self.range_id)

    def _check_complete(self, machine: Machine, journal: Journal) -> None:
        who = f"{machine.name}, leader of term {self._leads[machine.name]},"
        term, newest = self._leads[machine.name], self.newest
        while newest and self.committed_by.get(newest, 0) > term:
            newest -= 1
        require(
            journal.last_index >= newest,
            f"{who} has entries to {journal.last_index}; {newest} was applied somewhere",
        )
        for index in range(journal.base_index + 1, newest + 1):
            known = self.applied.get(index)
            mine = journal.term_at(index)
            require(
                known is None or known[0] == mine or self.committed_by[index] > term,
                f"{who} has an entry of term {mine} at {index}; applied was one of {known}",
            )

    # --- applied entries

    def applies(self, machine: Machine, index: int, term: int, effects: WriteSet) -> None:
        """Note an applied entry; it counts when it is written."""
        hosted = self._hosted(machine)
        assert hosted is not None
        replicated = {key: value for key, value in effects.items() if key[:1] != keys.RAFT_LOG}
        digest = blake2b(msgspec.msgpack.encode(replicated), digest_size=8).digest()
        applied = index, (term, digest), hosted.group.term
        self._applying.setdefault(machine.name, []).append(applied)

    def written(self, machine: Machine) -> None:
        """Note that the applied entries of this turn are written."""
        for index, entry, told_in in self._applying.pop(machine.name, ()):
            known = self.applied.setdefault(index, entry)
            self.committed_by[index] = min(told_in, self.committed_by.get(index, told_in))
            require(
                known == entry,
                f"{machine.name} applied {_told(entry)} at {index}, elsewhere it was "
                f"{_told(known)}",
            )
            self.newest = max(self.newest, index)
        hosted = self._hosted(machine)
        if hosted is None:
            return
        journal = hosted.group.core.journal
        if journal.members.voters:
            sets = tuple(hosted.group.core.voter_sets)
            self.voters.setdefault(journal.members_index, set()).add(sets)

    def crashed(self, machine: Machine) -> None:
        """Forget the unwritten entries of a crashed machine."""
        self._applying.pop(machine.name, None)
        self._leads.pop(machine.name, None)

    # --- messages

    def says(self, machine: Machine, to: int, message: Any) -> None:
        """Check that a member does not forget what it has said."""
        if isinstance(message, PreVote | PreVoted):
            return
        hosted = self._hosted(machine)
        if hosted is not None and hosted.group.holds_nothing and self.range_id != ROOT_ID:
            campaigns = isinstance(message, Vote | TimeoutNow)
            votes = isinstance(message, Voted) and message.granted
            was_destroyed = hosted.group.core.journal.least_index > 0
            wrong = campaigns or (votes and was_destroyed)
            require(not wrong, f"{machine.name} holds nothing, and says {message!r:.300}")
            if not votes:
                return  # its term tells nobody anything
        log = self._durable_log(machine)
        wrong = None
        if log.term < message.term:
            wrong = f"is in term {log.term}"
        match message:
            case Vote() if log.term == message.term and log.vote != machine.node_id:
                wrong = f"has voted for {log.vote}"
            case Voted(granted=True) if log.term == message.term and log.vote != to:
                wrong = f"has voted for {log.vote}, not for {to}"
            case Appended(success=True) if not log.covers(message.index):
                wrong = f"has no entry {message.index}"
            case Vote() | Append() | Chunk() | Appended() | ChunkTaken() | Voted() | TimeoutNow():
                pass
        if wrong is not None:  # a message may be of many megabytes: it is told only then
            raise Broken(f"{machine.name} says {message!r:.300}, but its disk {wrong}")

    def _durable_log(self, machine: Machine) -> Log:
        return self._durable_logs.of(machine.disk, self.range_id)

    # --- now and then

    def look(self, machines: Iterable[Machine]) -> None:
        """Look at all logs at once."""
        hosted = [each for each in map(self._hosted, machines) if each is not None]
        logs = [each.group.core.journal for each in hosted]
        for position, one in enumerate(logs):
            for other in logs[:position]:
                _check_matching(one, other)
        self._check_durable(machines)

    def _check_durable(self, machines: Iterable[Machine]) -> None:
        if not self.newest or not self.voters:
            return
        term, _ = self.applied[self.newest]
        holding = {
            machine.node_id
            for machine in machines
            if self._durable_log(machine).covers(self.newest, term)
        } | self.wiped
        # It may have been committed by the members before a change that is under way. A member
        # that is cut off may have a change in its log that will never be committed.
        recent = [who for index in sorted(self.voters)[-4:] for who in self.voters[index]]
        # While members are joint, a majority of each of the two sets of voters must hold it.
        enough = any(all(2 * len(holding & one) > len(one) for one in who) for who in recent)
        require(
            enough,
            f"entry {self.newest} was applied, but of {recent} only "
            f"{sorted(holding - self.wiped)} have it synced",
        )


def _check_matching(one: Journal, other: Journal) -> None:
    first = max(one.base_index, other.base_index)
    last = min(one.last_index, other.last_index)
    while last > first and one.term_at(last) != other.term_at(last):
        last -= 1
    equal = one.entries(first + 1, last) == other.entries(first + 1, last)
    require(equal, f"logs agree at {last}, but not everywhere between {first} and there")


def _told(entry: Entry) -> str:
    return f"{entry[1].hex()} of term {entry[0]}"
