"""The embedded configuration of a run: one node, in the process of its clients.

These things break, as chance has it at each event:

* the power, at a write or between two, with or without what was not synced; the process alone; and
  again while the node is opened;
* a write: it fails, and the write set is there whole, in part or not at all;
* the disk is slow, or fills up, to the reserve or to the brim;
* the wall clock is set forward or back, and time passes while nobody does anything;
* the node is closed and opened again; single clients die.

After each opening, and now and then, the checkers look at the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.server.assembly import NodeOptions
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.simulation import ClusterSimulation
from tests.sim.crowd import Place
from tests.sim.workloads.appends import Appends
from tests.sim.workloads.drawn import WORKLOADS, besides
from tests.sim.workloads.registers import Registers
from tests.sim.workloads.trails import Trails
from tests.sim.workloads.workload import Workload

STEPS: Final = 3300
RECORDED_SHARE: Final = 0.1
LOOKS_SHARE: Final = 0.004
TRAILS_SHARE: Final = 0.2
"""The share of events after which the checkers look."""

DAY: Final = 86_400.0
_JUMPS: Final = (-3600, -30, -0.5, 0.7, 5, 10, 70, 200, -DAY, DAY)


class EmbeddedFaults(Faults):
    """The faults of an embedded store.

    Args:
        store: what is disturbed.
        randomness: when, what, and for how long.
        pace: how long everything lasts, about.
        kill_client: kills a client of it.
    """

    def __init__(
        self,
        store: EmbeddedStore,
        randomness: Random,
        pace: float,
        kill_client: Callable[[], None],
    ) -> None:
        self._kill_client = kill_client
        super().__init__(store, randomness, pace, 0.0)
        self._store = store
        self._fills_all_disks = False
        self.clocks_jump_far, self._jumps = True, _JUMPS
        self.share = randomness.choice([0.0, 0.002, 0.008])

    def _drawn_acts(self) -> list[Callable[[], None]]:
        return [
            self._crash, self._crash_at_write, self._crash_at_write, self._fail_write,
            self._fill_disk, self._slow_disk, self._set_clock, self._set_clock, self._rest,
            self._close, self._kill_client, self._kill_client,
        ]  # fmt: skip

    def begin(self) -> None:
        """Do nothing: things break by the number of events."""

    def _reopen(self, machine: Machine) -> None:
        if not machine.serves():
            self._store.check()
            super()._reopen(machine)
            self._store.check()

    def _rest(self) -> None:
        """Let time pass without requests: leases, transactions and garbage expire."""
        self._store.agenda.stand_still(self._random.choice([0.5, 1.5, 10, 80]))
        self.seen["rests"] += 1


class EmbeddedSimulation(ClusterSimulation):
    """One run of a simulated embedded store."""

    kind = "embedded"
    paces = (0.02, 0.3, 2.0)
    workload_numbers = (1, 2, 3, 4)
    truces = 0
    cluster: EmbeddedStore
    faults: EmbeddedFaults

    def __init__(self, seed: int, events: int = STEPS) -> None:
        super().__init__(seed, events)

    def _drawn_cluster(self) -> EmbeddedStore:
        choose = self.random.choice
        options = NodeOptions(
            disk_reserve_bytes=2000,
            poll_seconds=choose([0.05, 1.0, 5.0]),
            gc_ttl_seconds=choose([1.0, 60.0]),
            gc_interval_seconds=choose([0.1, 2.0]),
            rests_alone=True,
        )
        store = EmbeddedStore(
            self.seed,
            options,
            reading_seconds=choose([0.0, 0.0001, 0.0007]),
            in_parts=self.random.random() < 0.7,
        )
        store.turns_away = choose([0.0, 0.5])
        store.machine.slowness = choose([1.0, 5.0, 20.0, 50.0])  # much is done in a slow turn
        store.machine.disk_slowness = choose([1.0, 1.0, 10.0])
        return store

    def _drawn_workloads(self, number: int) -> list[Workload]:
        drawn = [make() for make in self.random.sample(WORKLOADS, number)]
        if self._crowds.random() < RECORDED_SHARE:
            drawn += Registers(self.record), Appends(self.record)
        if Random(f"trails {self.seed}").random() < TRAILS_SHARE:
            drawn.append(Trails())
        return drawn + besides(self.seed)

    def _drawn_faults(self) -> EmbeddedFaults:
        return EmbeddedFaults(self.cluster, self.random, self.pace, self._kill_somebody)

    def _begin_client(self, place: Place) -> None:
        self.crowd.begin(place)

    def _kill_somebody(self) -> None:
        place = self.random.choice(sorted(self.crowd.members))
        if self.crowd.kill(place):
            self.crowd.begin(place)
            self.faults.seen["dead clients"] += 1

    def _look_again(self) -> None:
        """Do nothing: looks go by the number of events."""

    def _let_things_break(self, events: int) -> None:
        agenda = self.cluster.agenda
        for _ in range(events):
            if self.random.random() < self.faults.share:
                self.faults.strike()
            elif self.random.random() < LOOKS_SHARE:
                self.cluster.check()
            agenda.step()
