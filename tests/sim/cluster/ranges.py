"""Runs of stores with several ranges, which split, and whose leases move, while things break.

It is a run like any other, with more faults (:mod:`.range_faults`), and with workloads whose keys
come to lie in several ranges. At the end all ranges serve, and nothing of any transaction or
message is left under way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final

from postroom.client.database import CoreDatabase
from postroom.kv.clock import from_seconds
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.sim import store_rules, waiting_rules
from tests.sim.checkers import Content, require
from tests.sim.cluster import replica_rules
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.process import ADMINISTRATOR
from tests.sim.cluster.range_faults import RangeFaults
from tests.sim.cluster.simulation import ClusterSimulation
from tests.sim.ranges_history import RangesHistory
from tests.sim.simulation import EmbeddedSimulation
from tests.sim.workloads.appends import Appends
from tests.sim.workloads.drawn import OVER_RANGES
from tests.sim.workloads.jobs_over_ranges import JobsOverRanges
from tests.sim.workloads.registers import Registers
from tests.sim.workloads.stagers import Stagers
from tests.sim.workloads.watchers import WatchersOverRanges
from tests.sim.workloads.wholes import Wholes
from tests.sim.workloads.workload import Workload

FIRST_SPLITS_MAX: Final = 3
"""The number of splits before things break, at most."""
STAGERS_SHARE: Final = 0.3
WHOLES_SHARE: Final = 0.3
"""The share of runs in which stores are protected as a whole."""
SHARE_MIN: Final = 0.004
"""The least share of events of an embedded store at which something breaks."""
JOBS_SHARE: Final = 0.4
"""The share of runs in which messages of queues are worked off."""
WATCHERS_SHARE: Final = 0.3
"""The share of runs in which clients watch all ranges."""
AGEING_SHARE: Final = 0.15
"""The share of runs of embedded stores at whose end COMMIT records become garbage."""
AGED_SECONDS: Final = RECORD_SECONDS + 75.0
SPLITS_SECONDS: Final = 20.0
"""The time by which all splits and moves are over, when nothing breaks any more."""


class RangesSimulation(ClusterSimulation):
    """One run of a simulated cluster with several ranges."""

    calm_seconds = 40.0  # many clients of several ranges take turns at one slow disk
    history: RangesHistory

    def __init__(self, seed: int, *length: int) -> None:
        super().__init__(seed, *length)
        self.history = self.cluster.witness = RangesHistory()  # type: ignore[assignment]

    def _drawn_workloads(self, number: int) -> list[Workload]:
        return drawn_workloads(self, number)

    def _drawn_faults(self) -> Faults:
        faults = super()._drawn_faults()
        self.ranges = add_range_faults(self, faults)
        return faults

    def _set_up(self) -> None:
        super()._set_up()
        begin_with_several(self)

    def _crowd(self) -> None:
        """Do nothing: floods speak a revision that knows no ranges."""

    def _let_ranges_rest(self) -> None:
        let_ranges_rest(self)

    def _wake_services(self) -> None:
        wake_services(self)

    def _look_at_the_end(self) -> Content:
        return look_at_the_end(self)


class EmbeddedRangesSimulation(EmbeddedSimulation):
    """One run of a simulated embedded store with several ranges.

    Attributes:
        aged: the transactions whose COMMIT records have to be gone at the end.
    """

    history: RangesHistory
    aged: frozenset[bytes] = frozenset()

    def let_commits_age(self) -> None:
        """Let so much time pass in some runs that no COMMIT record of before may be left."""
        node = self.cluster.machine.node
        if Random(f"ageing {self.seed}").random() >= AGEING_SHARE or node is None:
            return
        before = store_rules.joined(store_rules.contents_of(waiting_rules.seen(node.root.replica)))
        due = node.clock.reading() + from_seconds(AGED_SECONDS - 1.0)
        self.cluster.agenda.run(AGED_SECONDS)
        node = self.cluster.machine.node
        if node is not None and node.clock.reading() >= due:  # a clock that was ahead stands
            self.aged = frozenset(before.records)

    def __init__(self, seed: int, *length: int) -> None:
        super().__init__(seed, *length)
        self.history = self.cluster.witness = RangesHistory()  # type: ignore[assignment]

    def _drawn_workloads(self, number: int) -> list[Workload]:
        return drawn_workloads(self, number)

    def _drawn_faults(self) -> Any:
        faults = super()._drawn_faults()
        faults.share = max(faults.share, SHARE_MIN)
        self.ranges = add_range_faults(self, faults)
        return faults

    def _set_up(self) -> None:
        super()._set_up()
        begin_with_several(self)

    def _let_ranges_rest(self) -> None:
        let_ranges_rest(self)

    def _wake_services(self) -> None:
        wake_services(self)

    def _look_at_the_end(self) -> Content:
        return look_at_the_end(self)


Simulation = RangesSimulation | EmbeddedRangesSimulation


def drawn_workloads(simulation: Simulation, number: int) -> list[Workload]:
    """Draw workloads whose keys may lie in several ranges."""
    recorded: list[Callable[[], Workload]] = [
        lambda: Registers(simulation.record),
        lambda: Appends(simulation.record),
    ]
    number = min(number + 1, len(OVER_RANGES))
    drawn = [make() for make in simulation.random.sample([*OVER_RANGES, *recorded], number)]
    if Random(f"watchers {simulation.seed}").random() < WATCHERS_SHARE:
        drawn.append(WatchersOverRanges())
    if Random(f"queues {simulation.seed}").random() < JOBS_SHARE:
        drawn.append(JobsOverRanges())
    if Random(f"stagers {simulation.seed}").random() < STAGERS_SHARE:
        drawn.append(Stagers())
    if Random(f"wholes {simulation.seed}").random() < WHOLES_SHARE:
        drawn.append(Wholes())
    return drawn


def add_range_faults(simulation: Simulation, faults: Faults) -> RangeFaults:
    """Add splits, moves of leases and lies to the faults of a run."""
    made: list[CoreDatabase] = []

    def database() -> CoreDatabase:
        if not made:
            made.append(simulation.cluster.database(ADMINISTRATOR))
        return made[0]

    chance = Random(f"ranges {simulation.seed}")
    ranges = RangeFaults(simulation.cluster, chance, database, faults.seen)
    faults.add(ranges.acts())
    return ranges


def begin_with_several(simulation: Simulation) -> None:
    """Split the store before things break, most of the time."""
    chance = Random(f"first splits {simulation.seed}")
    for _ in range(chance.randint(1, FIRST_SPLITS_MAX)):
        simulation.ranges.split()
        simulation.cluster.agenda.run(0.05)


def let_ranges_rest(simulation: Simulation) -> None:
    """Wait until all splits are over."""
    told = lambda: f"splits are over; {simulation._who_waits()}"  # noqa: E731
    simulation.cluster.agenda.run_until(simulation.ranges.is_over, told, SPLITS_SECONDS)
    if isinstance(simulation, EmbeddedRangesSimulation):
        simulation.let_commits_age()


def wake_services(simulation: Simulation) -> None:
    """Write something into each range: one that rests has no services."""
    db, cluster = simulation._database, simulation.cluster
    for each in cluster.run(db.ranges(), "ranges are listed"):
        cluster.run(db.put(each.start, b""), "a last put succeeds")


def look_at_the_end(simulation: Simulation) -> Content:
    """Check that nothing is under way; return what all ranges hold."""
    cluster = simulation.cluster
    cluster.overseer.look()
    contents = replica_rules.look_at_ranges(cluster.machines)
    for each in contents:
        name = f"range {each.descriptor.range_id}"
        require(not each.outgoing, f"{name} has outgoing entries: {each.outgoing}")
        require(not each.prepared, f"{name} has prepared records: {each.prepared}")
        require(not each.unresolved, f"{name} has told not all: {each.unresolved}")
    for machine in cluster.machines:
        store_rules.check_nothing_else(machine.disk.content, contents)
    if isinstance(simulation, EmbeddedRangesSimulation):
        left = [id_.hex() for each in contents for id_ in simulation.aged & each.records.keys()]
        require(not left, f"after {AGED_SECONDS} s there are the COMMIT records of {left}")
    simulation.faults.seen["ranges"] += len(contents)
    simulation.history.ranges_max = max(cluster.overseer.raft_of)
    return store_rules.check_together(contents)
