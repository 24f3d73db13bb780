"""An overseer, which looks at all machines at every step, and knows nothing of what clients do.

It sees what each node applies (by standing between the group and the range), what leaves each
node, and what is on every disk. :mod:`.raft_rules`, :mod:`.lease_rules`, :mod:`.span_rules` and
:mod:`.replica_rules` say what must hold of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial

from postroom.kv import keys
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.raft.interface import CommittedEntry
from postroom.raft.messages import decode_frame
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.lease import LEASE_RECORD
from postroom.ranges.state import encode_applied
from postroom.server.call_frames import CALL_FRAME
from postroom.server.hosted_range import HostedRange
from tests.sim import checkers, disks, store_rules, waiting_rules
from tests.sim.both_ways import check_usual_way
from tests.sim.checkers import Broken, Content, require
from tests.sim.cluster import replica_rules, transfers
from tests.sim.cluster.lease_rules import LeaseRules
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.raft_rules import DurableLogs, RaftRules
from tests.sim.cluster.span_rules import SpanRules
from tests.sim.grants import Grants


class Overseer:
    """An overseer of all machines, at every step.

    Attributes:
        machines: all that there are, whether they are up or not.
        seen: how often what has happened.
        raft, leases: the rules of the root.
        raft_of, leases_of: the rules of each range.
        wiped: the nodes whose disks were lost.
        durable_logs: what a loss of power would leave of the logs.
        is_alone: whether the only machine is an embedded store: all timestamps are of its clock.
        is_synced: whether the nodes promise that what they have applied is durable.
    """

    def __init__(self, note: Callable[..., None]) -> None:
        self.machines: list[Machine] = []
        self.seen: Counter[str] = Counter()
        self.is_alone, self.is_synced = False, True
        self.wiped: set[int] = set()
        self.durable_logs = DurableLogs()
        self.spans = SpanRules()
        self._note = note
        self._grants: dict[str, dict[HostedRange, Grants]] = {}
        self._steps: dict[str, waiting_rules.StepRules] = {}
        self._begin()

    def _begin(self) -> None:
        """Know nothing of what was applied."""
        self.raft, self.leases = self._raft_rules(ROOT_ID), LeaseRules()
        self.raft_of, self.leases_of = {ROOT_ID: self.raft}, {ROOT_ID: self.leases}

    def _raft_rules(self, range_id: int) -> RaftRules:
        return RaftRules(range_id, self.durable_logs, self.wiped)

    def _rules_of(self, range_id: int) -> tuple[RaftRules, LeaseRules]:
        if range_id not in self.raft_of:
            self.raft_of[range_id] = self._raft_rules(range_id)
            self.leases_of[range_id] = LeaseRules(range_id)
        return self.raft_of[range_id], self.leases_of[range_id]

    # --- nodes and their ranges

    def opened(self, machine: Machine) -> None:
        """Watch a node from now on, with the ranges that it has and those that come to it."""
        node = machine.node
        assert node is not None
        self._grants[machine.name] = {}
        self._steps[machine.name] = waiting_rules.StepRules(node)
        host_range = node.host_range

        def watched_host_range(*range_: object, **more: object) -> HostedRange:
            hosted: HostedRange = host_range(*range_, **more)  # type: ignore[arg-type]
            self._watch(machine, hosted)
            return hosted

        node.host_range = watched_host_range  # type: ignore[method-assign]
        for hosted in node.replicas.hosted.values():
            self._watch(machine, hosted)

    def _watch(self, machine: Machine, hosted: HostedRange) -> None:
        """Watch a range on a node."""
        assert machine.node is not None
        check_usual_way(hosted.replica)
        self._grants[machine.name][hosted] = Grants(machine.node, hosted)
        self._watch_state(machine, hosted)
        transfers.watch(hosted, machine.clock.monotonic, self.seen)

    def _watch_state(self, machine: Machine, hosted: HostedRange) -> None:
        state = hosted.replica.state
        apply, installed = state.apply, state.snapshot_installed
        raft, _ = self._rules_of(hosted.range_id)

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
                    raft.applies(machine, index, term, effects | record)
                    checkers.check_sums(state._sums)
                    self._note_leases(machine, hosted.range_id, index, effects)
                    effects.clear()

            apply(watched(), effects)
            require(effects == record, f"{machine.name} stages another index than it has applied")
            staged.update(effects)

        def watched_installed() -> None:
            installed()
            self.seen["snapshots installed"] += 1

        state.apply = watched_apply  # type: ignore[method-assign]
        state.snapshot_installed = watched_installed  # type: ignore[method-assign]

    def _note_leases(self, machine: Machine, range_id: int, index: int, effects: WriteSet) -> None:
        """Note changes of the lease, and the lease with which a right half begins."""
        self.leases_of[range_id].applies(machine, index, effects)
        for key in effects:
            if key[:1] == keys.RANGE and key.endswith(LEASE_RECORD.encode()):
                of = int.from_bytes(key[1:9], "big")
                if of != range_id and key == keys.record_key(of, LEASE_RECORD):
                    self._rules_of(of)[1].applies(machine, 0, effects)
                    self.seen["right halves begun"] += 1

    # --- acts of nodes

    def acted(self, machine: Machine) -> None:
        """Check what the node of a machine has done."""
        node = machine.node
        if node is None:
            return
        for session in machine.held_up:
            session.check()
        hosted = list(node.replicas.hosted.values())
        self._steps[machine.name].check()
        grants = self._grants[machine.name]
        for each in hosted:
            stopped = each.group.stopped
            # In a turn, a replica that holds nothing may be closed: a split has begun its range.
            if stopped is not None and node.failed is None and not machine.is_in_turn:
                raise Broken(f"the replica on {machine.name} has stopped") from stopped
            grants[each].look()
            self.raft_of[each.range_id].acted(machine)
            self.leases_of[each.range_id].acted(machine, self.machines)
        if len(grants) > len(hosted):
            for gone in [each for each in grants if each not in hosted]:
                del grants[gone]
        self.spans.acted(machine, self.machines)

    def written(self, machine: Machine) -> None:
        """Note that the staged writes of its node are written."""
        if machine.node is not None:
            for rules in (*self.raft_of.values(), *self.leases_of.values()):
                rules.written(machine)

    def sends(self, machine: Machine, to: int, frame: bytes) -> None:
        """Check a frame that a node sends to another one."""
        self._note("frame", machine.name, to, len(frame))
        if frame[:1] == CALL_FRAME:
            return
        decoded = decode_frame(frame)[0]
        require(decoded is not None, f"{machine.name} sends what nobody can read")
        assert decoded is not None
        for range_id, message in decoded.envelopes:
            self._rules_of(range_id)[0].says(machine, to, message)

    def crashed(self, machine: Machine) -> None:
        """Look at a machine whose node has ended."""
        for rules in (*self.raft_of.values(), *self.leases_of.values()):
            rules.crashed(machine)
        if not self.is_synced:  # other entries may follow
            self._begin()

    def look(self) -> Content | None:
        """Look at everything at once; return what the replicas hold that have come farthest."""
        self._note("look", self.raft.newest)
        self.seen["looks"] += 1
        if self.seen["looks"] % 2:
            self._write_gathered()
        if self.is_synced:
            for rules in self.raft_of.values():
                rules.look(self.machines)
        if self.is_alone:
            self._look_at_all_ranges(self.machines[0])
            return store_rules.check_disk(disks.content(self.machines[0].disk))
        return replica_rules.look(self.machines)

    def _write_gathered(self) -> None:
        """Have the nodes write what they have gathered, or disks stay behind what is applied."""
        for machine in self.machines:
            node = machine.node
            if node is not None:
                with suppress(EngineFailed):
                    machine.act(partial(disks.write_gathered, node))

    def _look_at_all_ranges(self, machine: Machine) -> None:
        """Check all ranges of an embedded store together, as its node reads them."""
        node = machine.node
        if node is not None and len(node.replicas.hosted) > 1 and not machine.is_in_turn:
            contents = store_rules.contents_of(waiting_rules.seen(node.root.replica))
            store_rules.check_together(contents)
