"""A cluster in one thread: members on disks in memory, a network in memory, a clock that is set.

Nothing here sleeps or reads a real clock. A member may crash, losing what was not synced, and start
again on its disk. It may also be told to send before it syncs, to show what that would cost.
"""

from __future__ import annotations

import logging
import random  # noqa: TID251 (seeded)
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from postroom.kv.engine import Engine, EngineSnapshot, WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.raft.consensus import Consensus
from postroom.raft.group import RaftGroup
from postroom.raft.interface import (
    CommittedEntry,
    MemoryNetwork,
    NetworkFaults,
    RaftOptions,
    StateSnapshot,
)
from postroom.raft.proposals import ProposalOutcome

GROUP_ID = 7
APPLIED = b"\x03applied"
HISTORY = b"\x04"
BYTES_A_TURN = 100_000

_pairs = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

logging.getLogger("postroom.raft").setLevel(logging.CRITICAL + 1)


class HistoryMachine:
    """A machine that keeps every command applied, by index: the state is the history itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.contexts: list[object] = []
        self.applied_now: list[int] = []
        self.passes = 0
        self.fails_on: bytes | None = None
        self.installs = False
        self.refuses = False
        self.asked: list[bool] = []
        self.pairs_per_chunk = 3
        self.opened: list[StateSnapshot] = []
        self.closed = 0
        self.preparing = (0, 0)
        self.turns_left = 0

    def applied_index(self) -> int:
        stored = self.engine.get(APPLIED)
        return 0 if stored is None else int.from_bytes(stored[:8], "big")

    def applied_term(self) -> int:
        stored = self.engine.get(APPLIED)
        return 0 if stored is None else int.from_bytes(stored[8:], "big")

    def apply(self, entries: Iterable[CommittedEntry], staged: WriteSet) -> None:
        assert not self.installs, "applied into a state that is neither old nor new"
        self.passes += 1
        for index, term, command, context in entries:
            before = self.applied_now[-1] if self.applied_now else index - 1
            assert index > before, f"{index} is applied after {before}"
            if command is not None:
                is_own = isinstance(context, Proposed) and not command
                applied = context.command if is_own else bytes(command)
                if applied == self.fails_on:
                    raise ArithmeticError("a command that cannot be applied")
                staged[HISTORY + index.to_bytes(8, "big")] = applied
            staged[APPLIED] = index.to_bytes(8, "big") + term.to_bytes(8, "big")
            self.applied_now.append(index)
            if context is not None:
                self.contexts.append(context)

    def prepare(self, index: int, term: int, command: memoryview) -> bool:
        """Prepare a command; large ones take several turns."""
        if (index, term) != self.preparing:
            self.preparing, self.turns_left = (index, term), len(command) // BYTES_A_TURN
        self.turns_left -= 1
        return self.turns_left < 0

    def history(self) -> dict[int, bytes]:
        stored = self.engine.iterate(HISTORY, HISTORY + b"\xff" * 9)
        return {int.from_bytes(key[1:], "big"): value for key, value in stored}

    def open_snapshot(self) -> StateSnapshot:
        self.opened.append(
            StateSnapshot(self.applied_index(), self._chunks(self.engine.snapshot()))
        )
        return self.opened[-1]

    def _chunks(self, frozen: EngineSnapshot) -> Iterator[bytes]:
        """Yield a few pairs each; the applied index comes first, as it does in a range."""
        pairs = [(APPLIED, frozen.get(APPLIED)), *frozen.iterate(HISTORY, HISTORY + b"\xff" * 9)]
        try:
            for first in range(0, len(pairs), self.pairs_per_chunk):
                yield msgspec.msgpack.encode(pairs[first : first + self.pairs_per_chunk])
        finally:
            self.closed += 1

    def is_chunk(self, data: bytes) -> bool:
        try:
            _pairs.decode(data)
        except (ValueError, msgspec.DecodeError):
            return False
        return True

    def may_install(self, first: bytes, *, is_whole: bool) -> bool:
        assert self.is_chunk(first)
        self.asked.append(is_whole)
        return not self.refuses

    def install_snapshot(self, chunks: Iterator[bytes]) -> Iterator[WriteSet]:
        """Install one key a step: as many turns, and places to crash, as possible."""
        self.installs = True
        for key, _ in list(self.engine.iterate(APPLIED, HISTORY + b"\xff" * 9)):
            yield {key: None}
        for chunk in chunks:
            for key, value in _pairs.decode(chunk):
                yield {key: value}

    def snapshot_installed(self) -> None:
        self.installs = False


@dataclass
class Proposed:
    """A command and how it ended, if it has."""

    command: bytes
    node: int
    outcomes: list[ProposalOutcome] = field(default_factory=list)

    @property
    def outcome(self) -> ProposalOutcome | None:
        assert len(self.outcomes) <= 1, f"{self.command!r} ended {len(self.outcomes)} times"
        return self.outcomes[0] if self.outcomes else None


class Member:
    """One node with one group."""

    def __init__(self, cluster: Cluster, node: int, disk: MemoryDisk | None = None) -> None:
        self.node = node
        self.disk = MemoryDisk() if disk is None else disk
        self.engine = MemoryEngine(self.disk)
        self.machine = HistoryMachine(self.engine)
        self.consensus = Consensus(
            self.engine,
            cluster.network.attach(node),
            node_id=node,
            monotonic=cluster.monotonic,
            random=cluster.random,
            options=cluster.options,
        )
        self.machine.pairs_per_chunk = cluster.pairs_per_chunk
        # A member that is to join knows of no other one until the leader says.
        first = cluster.first_members if node in cluster.first_members else ()
        self.group: RaftGroup = self.consensus.create(GROUP_ID, first, self.machine)

    @property
    def role_and_term(self) -> tuple[bool, int]:
        return self.group.is_leader, self.group.term

    def turn(self) -> None:
        writes = self.consensus.stage()
        self.consensus.send_early()
        if writes:
            self.engine.write(writes, sync=self.consensus.needs_sync)
        self.consensus.release()


class Cluster:
    """A cluster of a few members, with a network and a clock."""

    def __init__(
        self,
        size: int,
        seed: int = 1,
        options: RaftOptions | None = None,
        faults: NetworkFaults | None = None,
    ) -> None:
        self.now = 0.0
        self.pairs_per_chunk = 3
        self.random = random.Random(seed)
        self.options = RaftOptions() if options is None else options
        self.first_members = tuple(range(1, size + 1))
        self.network = MemoryNetwork(self.random, self.monotonic, faults)
        self.proposed: list[Proposed] = []
        self.leaders: dict[int, int] = {}
        self.members: dict[int, Member] = {}
        self.down: dict[int, MemoryDisk] = {}
        self.members = {node: Member(self, node) for node in self.first_members}

    def monotonic(self) -> float:
        return self.now

    # Time.

    def step(self) -> None:
        """Let everybody who has something to do at this moment do it, then let time pass."""
        for member in list(self.members.values()):
            member.turn()
            self.observe(member)
        waits = [self.network.next_arrival()]
        waits += [member.consensus.next_deadline() for member in self.members.values()]
        due = min((at for at in waits if at is not None), default=self.now + 0.01)
        self.now = max(due, self.now + 1e-6)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()

    def run_until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        until = self.now + seconds
        while not condition():
            assert self.now < until, "it did not happen in time"
            self.step()

    # People.

    def observe(self, member: Member) -> None:
        """Check election safety (section 5.2): at most one leader a term, ever."""
        leads, term = member.role_and_term
        if leads:
            assert self.leaders.setdefault(term, member.node) == member.node, (
                f"two lead term {term}"
            )

    @property
    def leader(self) -> Member | None:
        """Return the leader of the highest term, if it is up."""
        leading = [each for each in self.members.values() if each.group.is_leader]
        return max(leading, key=lambda each: each.group.term, default=None)

    def elect(self) -> Member:
        self.run_until(lambda: self.leader is not None)
        leader = self.leader
        assert leader is not None
        return leader

    def followers(self) -> list[Member]:
        return [each for each in self.members.values() if each is not self.leader]

    def propose(self, member: Member, command: bytes | None = None) -> Proposed:
        text = f"command {len(self.proposed)}".encode() if command is None else command
        proposed = Proposed(text, member.node)
        self.proposed.append(proposed)
        member.group.propose(text, proposed, proposed.outcomes.append)
        return proposed

    def replicate(self, count: int = 1) -> list[Proposed]:
        """Have ``count`` commands applied by the leader."""
        proposed = [self.propose(self.elect()) for _ in range(count)]
        self.run_until(lambda: all(each.outcomes for each in proposed))
        return proposed

    def settle(self) -> None:
        """Wait until every member that is up has applied the same."""

        def level() -> bool:
            members = self.current()
            applied = {each.group.applied_index for each in members}
            leader = self.leader
            installing = any(each.group.is_installing for each in members)
            return leader is not None and not installing and applied == {leader.group.last_index}

        self.run_until(level)

    def current(self) -> list[Member]:
        """Return the leader's voters and learners that are up; all members, if nobody leads."""
        leader = self.leader
        if leader is None:
            return list(self.members.values())
        among = {*leader.group.members, *leader.group.learners}
        return [each for each in self.members.values() if each.node in among]

    # Crashes.

    def crash(self, node: int, *, power: bool = True) -> None:
        member = self.members.pop(node)
        self.network.detach(node)
        member.disk.crash(self.random if power else None)
        self.down[node] = member.disk

    def start(self, node: int) -> Member:
        self.members[node] = Member(self, node, self.down.pop(node))
        return self.members[node]

    # Invariants.

    def check_state_machine_safety(self) -> None:
        """Check section 5.4.3: no two members applied different entries at one index."""
        seen: dict[int, bytes] = {}
        for member in self.members.values():
            for index, command in member.machine.history().items():
                assert seen.setdefault(index, command) == command, f"members differ at {index}"

    def check_log_matching(self) -> None:
        """Check section 5.3: logs with an entry of equal index and term are equal up to it."""
        logs = [each.group.core.journal for each in self.members.values()]
        for one in logs:
            for other in logs:
                last = min(one.last_index, other.last_index)
                first = max(one.base_index, other.base_index)
                agreed = False
                for index in range(last, first, -1):
                    mine, theirs = one.entries(index, index), other.entries(index, index)
                    agreed = agreed or one.term_at(index) == other.term_at(index)
                    assert not agreed or mine == theirs, f"logs differ at {index}"

    def check_outcomes(self) -> None:
        """Check that what was told is true, and everything was told."""
        histories = [set(each.machine.history().values()) for each in self.current()]
        for proposed in self.proposed:
            applied = [proposed.command in history for history in histories]
            if proposed.outcome is ProposalOutcome.APPLIED:
                assert all(applied), f"{proposed.command!r} was acknowledged and is lost"
            elif proposed.outcome is ProposalOutcome.SUPERSEDED:
                assert not any(applied), f"{proposed.command!r} was called off and is there"
