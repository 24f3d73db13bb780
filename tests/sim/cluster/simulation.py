"""One run: a cluster, some workloads, and things that break; then calm, and the reckoning.

In the phase of faults nothing wrong may ever be seen. Now and then there is a *truce*: what is
broken is mended, and every client must get something done, in the middle of it all. It must do so
once more while a single machine is missing (:mod:`.absence`), or after a flood (:mod:`.floods`) or
full disks (:mod:`.full_disks`). At the end everything is mended for good, and everything must
finish: every client ends, the outboxes drain, all replicas come to hold the same. At last the
workloads look at what is left, and the history of all that clients were told is compared with what
is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random  # noqa: TID251 - made from the seed
from typing import Final

from postroom.client.database import CoreDatabase
from postroom.kv.engine import EngineFailed
from postroom.limits import REQUEST_SECONDS
from postroom.messaging.requests import Counters
from postroom.raft.interface import RaftOptions
from postroom.ranges.requests import ScanChanges
from postroom.server.assembly import NodeOptions
from tests.sim import checkers, waiting_rules
from tests.sim.checkers import Content
from tests.sim.cluster import absence, floods, full_disks, replica_rules, transfers
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.faults import Faults
from tests.sim.crowd import Crowd, Place
from tests.sim.disks import write_gathered
from tests.sim.generators import closed_quietly
from tests.sim.history import History
from tests.sim.page_sizes import drawn_page_sizes
from tests.sim.recorded.operations import Record
from tests.sim.service_rules import check_services
from tests.sim.tasks import Task
from tests.sim.workloads.appends import Appends
from tests.sim.workloads.drawn import WORKLOADS, besides
from tests.sim.workloads.registers import Registers
from tests.sim.workloads.workload import Workload

EVENTS: Final = 14_000
"""The number of events while things break."""

ELECTION_SECONDS: Final = 1.0
"""The seconds in which a run of pace 1 elects a leader."""

JOIN_SECONDS: Final = 60.0
"""The most that nodes may take until all are fed and counted.

Large values travel in tiny chunks to slow nodes, and a node that lags is fed anew while clients go
on.
"""

BEHIND_SECONDS: Final = REQUEST_SECONDS
"""The seconds for which a transaction is tried that began by a later clock than the leader's."""

EXPIRED_SECONDS: Final = 130.0
"""The same if clocks were so far ahead that transactions have expired."""


ABSENCES_SHARE: Final = 0.4
"""The share of truces in which one machine is missing."""

FLOODS_SHARE: Final = 0.15
"""The share of truces in which a client is polite beside a flood."""

FULL_SHARE: Final = 0.06
"""The share of runs in which all disks are full for a while, in a truce.

The log has more room in these. Otherwise the clients' deletions would use up, before that is looked
at, what there was made beforehand.
"""
FULL_SEGMENT_BYTES: Final = 1024 * 1024

GONE_SECONDS: Final = 7.0
"""The time after which nothing is held for clients any more that have died."""

SLOT_MOVES_MAX: Final = 5
"""The times at which the counters are told again at the end."""
DUE_SECONDS: Final = 1.0
"""The time by which all is due that workloads have scheduled for later."""


@dataclass
class Report:
    """The events of a run."""

    seed: int
    nodes: int
    workloads: list[str]
    faults: Counter[str]
    commits: Counter[str]
    seen: Counter[str]
    digest: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.nodes} nodes; {' '.join(self.workloads)}; commits: "
            f"{told(self.commits)}; {told(self.seen)}; faults: {told(self.faults)}; {self.digest}"
        )


def told(counted: Counter[str]) -> str:
    """Return counts as text for people."""
    return ", ".join(f"{number} {name}" for name, number in sorted(counted.items())) or "none"


class ClusterSimulation:
    """One run of a simulated cluster.

    Attributes:
        kind: of the simulation.
        paces: one of them is drawn: how long faults last, and elections in seconds.
        workload_numbers: one of them is drawn.
        truces: how many there are in the phase of faults.
        calm_seconds: the most that the last client may take when nothing breaks any more: the
            longest back-offs.
    """

    kind = "cluster"
    paces: tuple[float, ...] = (0.2, 0.5, 1.0, 1.0)
    workload_numbers: tuple[int, ...] = (1, 1, 2, 3)
    truces = 1
    calm_seconds = 12.0
    cluster: Cluster

    def __init__(self, seed: int, events: int = EVENTS) -> None:
        self.seed = seed
        self.random = Random(f"{self.kind} simulation {seed}")
        choose = self.random.choice
        self.pace = choose(self.paces)
        self._crowds = Random(f"crowds {seed}")
        self._fills_disks = self._crowds.random() < FULL_SHARE
        self.cluster = self._drawn_cluster()
        self.history = History()
        self.cluster.witness = self.history
        self.record = Record(lambda: self.cluster.agenda.now)
        self.workloads = self._drawn_workloads(choose(self.workload_numbers))
        self._events = events
        self.crowd = Crowd(self.cluster, seed, self.workloads)
        self._database = self.cluster.database("client 0")
        self._absences = Random(f"absences {seed}")
        self.faults = self._drawn_faults()

    def _drawn_cluster(self) -> Cluster:
        cluster = Cluster(self.seed, *self._hardware(self.random.choice([3, 3, 3, 5])))
        for machine in cluster.machines:
            machine.in_parts = self.random.random() < 0.8
            if self._fills_disks:
                machine.segment_bytes = FULL_SEGMENT_BYTES
        return cluster

    def _drawn_faults(self) -> Faults:
        interval_seconds = self.pace * self.random.choice([0.1, 0.3, 1.0])
        return Faults(self.cluster, self.random, self.pace, interval_seconds)

    def _hardware(self, size: int) -> tuple[list[NodeOptions], list[tuple[float, float, float]]]:
        choose, pace = self.random.choice, self.pace
        raft = RaftOptions(
            heartbeat_seconds=0.1 * pace,
            election_seconds_min=0.5 * pace,
            election_seconds_max=1.0 * pace,
            orphan_seconds=choose([0.1, 1.0]) * pace,
            quiet_after_seconds=choose([0.3 * pace, 1.0, None]),
            append_messages_in_flight_max=choose([1, 8]),
            log_entries_max=choose([3, 30, 4096]),
            append_bytes_max=Random(f"appends {self.seed}").choice([1, 1 << 20, 1 << 20]),
        )
        everybody = tuple(range(1, size + 1))
        common = {
            "lease_seconds": choose([0.3, 1.0, 3.0]) * pace,
            "raft": raft,
            "gc_ttl_seconds": choose([1.0, 60.0]),
            "gc_interval_seconds": choose([0.1, 2.0]),
            "poll_seconds": choose([0.05, 1.0, 5.0]),
            "disk_reserve_bytes": 2000,
        }
        reading_seconds = choose([0.0, 0.00001])
        clocks = [
            (self.random.uniform(0.98, 1.02), self.random.uniform(-0.2, 0.2), reading_seconds)
            for _ in everybody
        ]
        return [NodeOptions(**common) for _ in everybody], clocks

    def _drawn_workloads(self, number: int) -> list[Workload]:
        recorded: list[Callable[[], Workload]] = [
            lambda: Registers(self.record),
            lambda: Appends(self.record),
        ]
        drawn = [make() for make in self.random.sample([*WORKLOADS, *recorded], number)]
        return drawn + besides(self.seed)

    def run(self) -> Report:
        """Carry out the whole run.

        Raises:
            AssertionError: something is not as it must be.
        """
        with (
            transfers.drawn_sizes(Random(f"transfers {self.seed}")),
            drawn_page_sizes(Random(f"pages {self.seed}")),
            closed_quietly(),
        ):
            try:
                self._run()
            finally:
                self.cluster.abandon()
        return self._report()

    def _run(self) -> None:
        cluster = self.cluster
        for machine in cluster.machines:
            assert machine.open()
        cluster.run(self._database._sender.connect(), "somebody answers")
        self._set_up()
        self.crowd.begin_all(self._begin_client)
        self.faults.begin()
        self._look_again()
        events = self._events // (self.truces + 1)
        for part in range(self.truces + 1):
            spent = self._hold_truce() if part else 0
            self._let_things_break(max(events // 2, events - spent))
        self._calm()
        self._reckon()

    def _set_up(self) -> None:
        for workload in self.workloads:
            name = type(workload).__name__.lower()
            self.cluster.run(workload.setup(self._database), f"{name} is set up")

    def _let_things_break(self, events: int) -> None:
        """Let so much happen."""
        agenda = self.cluster.agenda
        until = agenda.events + events
        while agenda.events < until:
            agenda.step()

    def _report(self) -> Report:
        outcomes = (each.outcome for each in self.history.attempts.values())
        seen = Counter(self.cluster.overseer.seen)
        seen["terms led"] = len(self.cluster.overseer.raft.leaders)
        seen["leases"] = len(self.cluster.overseer.leases.leases)
        seen["entries"] = self.cluster.overseer.raft.newest
        seen["events"] = self.cluster.agenda.events
        seen["seconds"] = int(self.cluster.agenda.now)
        seen["writes"] = sum(machine.disk.writes for machine in self.cluster.machines)
        return Report(
            self.seed,
            len(self.cluster.machines),
            [type(each).__name__.lower() for each in self.workloads],
            self.faults.seen,
            Counter(outcome.name.lower() for outcome in outcomes),
            seen,
            self.cluster.digest(),
        )

    # --- clients

    def _begin_client(self, place: Place) -> None:
        """Begin a client; some of them will be killed."""
        victim = self.crowd.begin(place)
        if self.random.random() < 0.1:
            life = self.random.expovariate(1 / (5 * self.pace))
            self.cluster.agenda.after(life, lambda: self._kill_client(place, victim))

    def _kill_client(self, place: Place, victim: Task) -> None:
        task = self.crowd.members[place].task
        if task is victim and not self.crowd.is_over and self.crowd.kill(place):
            self._begin_client(place)
            self.faults.seen["dead clients"] += 1

    # --- checks

    def _look_again(self) -> None:
        if not self.crowd.is_over:
            self.cluster.overseer.look()
            self.cluster.agenda.after(self.pace * 3 * self.random.random(), self._look_again)

    def _hold_truce(self) -> int:
        """Let nothing break for a while, in which every client gets on.

        Clocks that were set back stay so: that holds up a transaction that has begun already, and
        no other one.

        Returns:
            How much has happened while one machine was missing.
        """
        self.faults.mend()
        if self.faults.clocks_jump_far:
            self._correct_clocks()
        self._let_everybody_get_on()
        began = self.cluster.agenda.events
        if self._absences.random() < ABSENCES_SHARE and self.faults.joining.is_settled():
            missing = absence.begin(self.cluster, self._absences)
            if missing is not None:
                self._let_everybody_get_on()
                self.cluster.overseer.seen[f"one {missing}"] += 1
                self.faults.mend()
        self._crowd()
        self.cluster.overseer.seen["truces"] += 1
        self.faults.resume()
        return self.cluster.agenda.events - began

    def _crowd(self) -> None:
        """Begin a flood in some truces, or leave no room on any disk; then every client gets on."""
        chance, cluster = self._crowds, self.cluster
        is_flooded = chance.random() < FLOODS_SHARE
        if self.faults.clocks_jump_far or not (is_flooded or self._fills_disks):
            return
        polite = cluster.database("polite")
        cluster.run(polite._sender.connect(), "somebody answers")  # type: ignore[attr-defined]
        if is_flooded and self.faults.joining.is_settled():
            name = chance.choice(sorted(floods.FLOODS))
            floods.check(cluster, polite, name, chance, 3 * floods.TURNS_MAX)
            cluster.overseer.seen[f"flood of {name}"] += 1
        logs = {
            machine.segment_bytes for machine in cluster.machines
        }  # new machines have short ones
        if logs == {FULL_SEGMENT_BYTES} and self.faults.joining.is_settled():
            full_disks.check(cluster, polite, chance)
            cluster.overseer.seen["truce with full disks"] += 1
        self.faults.mend()
        self._let_everybody_get_on()

    def _let_everybody_get_on(self) -> None:
        before = {each.client: each.client.done for each in self.crowd.members.values()}
        late = next(iter(self.crowd.members))  # every workload has a client

        def gets_on(place: Place) -> bool:
            task, _, client = self.crowd.members[place]
            # or it has come to its end
            return client.done > before.get(client, 0) or task.done

        def everybody_gets_on() -> bool:
            nonlocal late
            if not gets_on(late):  # mostly the one of the last event
                return False
            late = next((place for place in self.crowd.members if not gets_on(place)), late)
            return gets_on(late)

        patience = self.calm_seconds + GONE_SECONDS * (self.faults.seen["dead clients"] > 0)
        patience += BEHIND_SECONDS * (self.faults.seen["clocks set"] > 0)
        if self.faults.clocks_jump_far:
            patience = EXPIRED_SECONDS
        self.cluster.agenda.run_until(everybody_gets_on, self._who_waits, patience)

    def _waits_for_changes(self, place: Place) -> bool:
        task = self.crowd.members[place].task
        return isinstance(getattr(task.waits_for, "request", None), ScanChanges)

    def _calm(self) -> None:
        """Break nothing any more, and let all clients come to an end."""
        cluster = self.cluster
        self.crowd.is_over = True
        self.faults.mend()
        self._correct_clocks()
        cluster.forget_dead()
        patience = EXPIRED_SECONDS if self.faults.clocks_jump_far else self.calm_seconds
        joining = max(patience, JOIN_SECONDS)
        cluster.agenda.run_until(self.faults.joining.is_settled, self._who_waits, joining)
        cluster.agenda.run_until(self._clients_have_ended, self._who_waits, patience)
        self.crowd.kill_all()
        database = cluster.database("somebody who is killed")
        task = cluster.spawn("leave", _connect_and_leave(database))
        cluster.agenda.run(DUE_SECONDS)
        cluster.kill(task, database)
        cluster.forget_dead()
        self._let_ranges_rest()
        cluster.run(self._database.drain(60.0), "outboxes drain", 70.0)
        cluster.agenda.run(GONE_SECONDS)
        for machine in cluster.machines:
            if machine.node is not None:
                waiting_rules.check_rest(machine.node)
        self._change_leader()

    def _let_ranges_rest(self) -> None:
        """Do nothing: there is one range."""

    def _correct_clocks(self) -> None:
        """Set all wall clocks right, however far ahead they were; even then nothing is late."""
        for machine in self.cluster.machines:
            machine.clock.set_right()

    def _clients_have_ended(self) -> bool:
        """Return whether all clients have ended, but for those that wait for changes."""
        return all(
            task.done or self._waits_for_changes(place)
            for place, (task, _, _) in self.crowd.members.items()
        )

    def _who_waits(self) -> str:
        waiting = [
            f"{task.name} waits for {getattr(task.waits_for, 'request', task.waits_for)!r:.200}"
            for task, _, _ in self.crowd.members.values()
            if not task.done
        ]
        nodes = [
            f"{machine.name}: {machine.node and machine.node.describe()}"
            for machine in self.cluster.machines
        ]
        return "\n    ".join(["everybody comes to an end", *waiting, *nodes])

    def _change_leader(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            leader.close()
            assert leader.open()

    def _reckon(self) -> None:
        cluster = self.cluster
        for workload in self.workloads:
            name = type(workload).__name__.lower()
            cluster.run(workload.check(self._database), f"{name} is checked")
        told = self._told_counters()
        self._wake_services()
        cluster.agenda.run_until(self._replicas_agree, self._who_waits, 30.0)
        for machine in cluster.machines:
            if machine.node is not None:
                check_services(machine.node.describe())
        content = self._look_at_the_end()
        self.history.check(content)
        for _ in range(SLOT_MOVES_MAX):  # slots go home after a while, and count on their way
            if told == content.counters:
                break
            told = self._told_counters()
            content = self._look_at_the_end()
        checkers.require(told == content.counters, f"told {told}, stored {content.counters}")
        for machine in cluster.machines:
            machine.close()
            assert machine.open()
        cluster.overseer.look()
        for machine in cluster.machines:
            machine.close()
        cluster.overseer.look()

    def _told_counters(self) -> Counters:
        """Return the counters that the store tells."""
        what = "the store tells its counters"
        return self.cluster.retry(self._database.status, self._database, what).counters

    def _wake_services(self) -> None:
        """Write something: a store that rests has no services."""
        self.cluster.run(self._database.put(b"last", b""), "a last put succeeds")

    def _look_at_the_end(self) -> Content:
        content = self.cluster.overseer.look()
        assert content is not None
        return content

    def _replicas_agree(self) -> bool:
        try:
            for machine in self.cluster.machines:
                if machine.node is not None:
                    write_gathered(machine.node)
        except EngineFailed:
            return False  # its turn has failed, and is not over yet
        disks = [machine.disk.content for machine in self.cluster.machines]
        return all(
            len({replica_rules.applied_index(disk, range_id) for disk in disks}) == 1
            and not any(replica_rules.is_installing(disk, range_id) for disk in disks)
            for range_id in sorted({each for disk in disks for each in checkers.ranges_on(disk)})
        )


async def _connect_and_leave(db: CoreDatabase) -> None:
    await db._sender.connect()  # type: ignore[attr-defined]
    await waiting_rules.leave_everything(db)
