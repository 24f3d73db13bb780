"""An overseer, which looks at all machines at every step, and knows nothing of what clients do.

It sees what each node applies (by standing between the group and the range), what leaves each
node, and what is on every disk. :mod:`.raft_rules`, :mod:`.lease_rules` and :mod:`.replica_rules`
say what must hold of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from postroom.kv.engine import WriteSet
from postroom.raft.interface import CommittedEntry
from postroom.ranges.state import encode_applied
from tests.sim import checkers, disks, waiting_rules
from tests.sim.checkers import Broken, Content, require
from tests.sim.cluster import replica_rules, transfers
from tests.sim.cluster.lease_rules import LeaseRules
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.raft_rules import RaftRules
from tests.sim.grants import Grants


class Overseer:
    """An overseer of all machines, at every step.

    Attributes:
        machines: all that there are, whether they are up or not.
        seen: how often what has happened.
        is_alone: whether the only machine is an embedded store: all timestamps are of its clock.
        is_synced: whether the nodes promise that what they have applied is durable.
    """

    def __init__(self, note: Callable[..., None]) -> None:
        self.machines: list[Machine] = []
        self.raft = RaftRules()
        self.leases = LeaseRules()
        self.seen: Counter[str] = Counter()
        self.is_alone, self.is_synced = False, True
        self._note = note
        self._grants: dict[str, Grants] = {}

    def opened(self, machine: Machine) -> None:
        """Watch a node from now on."""
        node = machine.node
        assert node is not None
        self._grants[machine.name] = Grants(node)
        state = node.root.replica.state
        apply, installed = state.apply, state.snapshot_installed

        def watched_apply(entries: Iterable[CommittedEntry], staged: WriteSet) -> None:
            effects: WriteSet = {}
            record: WriteSet = {}

            def watched() -> Iterator[CommittedEntry]:
                for entry in entries:
                    yield entry
                    index, term = entry[:2]
                    staged.update(effects)
                    applied = encode_applied((index, term, state._last_commit, state._sums))
                    record[state._applied_key] = applied
                    self.raft.applies(machine, index, term, effects | record)
                    self.leases.applies(machine, index, effects)
                    effects.clear()

            apply(watched(), effects)
            require(effects == record, f"{machine.name} stages another index than it has applied")
            staged.update(effects)

        def watched_installed() -> None:
            installed()
            self.seen["snapshots installed"] += 1

        state.apply = watched_apply  # type: ignore[method-assign]
        state.snapshot_installed = watched_installed  # type: ignore[method-assign]
        transfers.watch(machine, self.seen)

    def acted(self, machine: Machine) -> None:
        """Check what the node of a machine has done."""
        if machine.node is not None:
            stopped = machine.node.root.replica.group.stopped
            if stopped is not None and machine.node.failed is None:
                raise Broken(f"the replica on {machine.name} has stopped") from stopped
            waiting_rules.check_step(machine.node)
            for session in machine.held_up:
                session.check()
            self._grants[machine.name].look()
            self.raft.acted(machine)
            self.leases.acted(machine, self.machines)

    def written(self, machine: Machine) -> None:
        """Note that the staged writes of its node are written."""
        if machine.node is not None:
            self.raft.written(machine)
            self.leases.written(machine)

    def sends(self, machine: Machine, to: int, frame: bytes) -> None:
        """Check a frame that a node sends to another one."""
        self._note("frame", machine.name, to, len(frame))
        self.raft.sends(machine, to, frame)

    def crashed(self, machine: Machine) -> None:
        """Look at a machine whose node has ended."""
        self.raft.crashed(machine)
        self.leases.crashed(machine)
        if not self.is_synced:  # other entries may follow
            self.raft, self.leases = RaftRules(), LeaseRules()

    def look(self) -> Content | None:
        """Look at everything at once; return what the replica holds that has come farthest."""
        self._note("look", self.raft.newest)
        self.seen["looks"] += 1
        if self.is_synced:
            self.raft.look(self.machines)
        if self.is_alone:
            return checkers.check(disks.content(self.machines[0].disk))
        return replica_rules.look(self.machines)
