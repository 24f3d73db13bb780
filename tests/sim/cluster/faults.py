"""The faults of a cluster, drawn at random, and how they are mended again.

Each fault lasts for a while of its own, so that several are there at once; none of them asks
whether a majority is left. Which ones a run has, and how often, is drawn at its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.kv.log_device import WriteFault
from tests.sim import disks
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.joining import STAYING_MIN_WITH_LOSSES, Joining
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import Weather
from tests.sim.turn import PowerFailure

_JUMPS: Final = (-3600, -30, -0.5, -0.1, 0.1, 0.4)
_JUMPS_FAR: Final = (*_JUMPS, 0.7, 5, 70, 3600, 86400)
"""The seconds by which a wall clock is set. Transactions are too old at once if it is far ahead.

The outcome of those that were under way cannot be told any more: ``run`` asks for a minute.
"""


_FULL_SHARE: Final = 0.25
"""The share of runs in which all disks fill at the same time, now and then."""


FAILING_OPENINGS_SHARE: Final = 0.3
"""The share of openings in which the power fails at a write, or soon after."""


class Faults:
    """Faults of a simulated cluster.

    Args:
        cluster: what is disturbed.
        randomness: when, what, and for how long.
        pace: how long everything lasts; an election takes about so many seconds.
        interval_seconds: how long it takes on average until something breaks.

    Attributes:
        clocks_jump_far: whether wall clocks are set so far ahead that transactions expire.
    """

    def __init__(
        self, cluster: Cluster, randomness: Random, pace: float, interval_seconds: float
    ) -> None:
        self.seen: Counter[str] = Counter()
        self.is_over = False
        self._cluster = cluster
        self._random = randomness
        self._pace = pace
        self._interval_seconds = interval_seconds
        self._clocks = Random(f"clocks that come back {cluster.seed}")
        self.clocks_jump_far = pace >= 0.5 and randomness.random() < 0.25
        self._disks = Random(f"disks that fill at once {cluster.seed}")
        self._openings = Random(f"openings {cluster.seed}")
        self._fills_all_disks = self._disks.random() < _FULL_SHARE
        self._next_strike = 0.0
        self._failing: set[Machine] = set()
        """The machines of which a write was to fail."""
        self._jumps: Sequence[float] = _JUMPS_FAR if self.clocks_jump_far else _JUMPS
        self.joining = Joining(cluster, randomness, pace / 10)
        self._acts = self._drawn_acts()
        if self._lose_disk in self._acts:
            self.joining.staying_min = STAYING_MIN_WITH_LOSSES
        for machine in cluster.machines:
            machine.on_crash = self._after_crash

    def _drawn_acts(self) -> list[Callable[[], None]]:
        """Return what breaks in this run."""
        acts = [
            self._crash, self._crash, self._crash_at_write, self._crash_at_write,
            self._crash_all, self._fail_write, self._fill_disk, self._slow_disk, self._slow_down,
            self._fall_asleep, self._fall_asleep, self._set_clock, self._isolate, self._isolate,
            self._cut_one_way, self._split, self._cut_off_client, self._bad_weather,
            self._bad_weather, self._transfer, self._hand_over, self._close, self._lose_disk,
            self._lose_disk, self._add_node, self._retire_node, self._retire_node,
            self._die,
        ]  # fmt: skip
        return self._random.sample(acts, self._random.randint(2, len(acts)))

    def add(self, acts: Sequence[Callable[[], None]]) -> None:
        """Add faults of another kind to those of the run."""
        self._acts += acts

    def begin(self) -> None:
        """Let things break from now on."""
        wait = self._random.expovariate(1 / self._interval_seconds)
        self._next_strike = moment = self._cluster.agenda.now + wait
        self._cluster.agenda.at(moment, lambda: self._strike(moment))

    def _strike(self, moment: float) -> None:
        if not self.is_over and moment == self._next_strike:
            self.strike()
            if self._fills_all_disks and self._disks.random() < 1 / len(self._acts):
                self._fill_all_disks()
            self.begin()

    def strike(self) -> None:
        """Let something break now."""
        self._random.choice(self._acts)()

    def resume(self) -> None:
        """Let things break again after a truce."""
        self.is_over = False
        self.begin()

    def mend(self) -> None:
        """Repair what is broken, and break nothing until ``resume``."""
        self.is_over = True
        self._cluster.network.mend_all()
        for machine in self._cluster.machines:
            machine.repair_disk()
            machine.slowness = machine.disk_slowness = 1.0
            machine.wake_up()
            if machine.node is None or machine.node.failed is not None:
                self._reopen(machine)
        self._look_after()

    def _look_after(self) -> None:
        """Look after nodes with failing writes: they may notice a failure at the next write."""
        if self.is_over and self._failing:
            for machine in self._cluster.machines:
                if machine.node is not None and machine.node.failed and machine in self._failing:
                    self._failing.remove(machine)
                    self._reopen(machine)
            self._cluster.agenda.after(self._pace, self._look_after)

    # --- choices of machines and times

    def _someone(self) -> Machine:
        """Choose any machine; the one that leads more often than the others."""
        leader = self._cluster.leader()
        if leader is not None and self._random.random() < 0.4:
            return leader
        return self._random.choice(self._cluster.machines)

    def _later(self, act: Callable[[], object], seconds: float | None = None) -> None:
        """Call ``act`` after a while, unless everything is mended by then."""
        wait = seconds or self._pace * self._random.choice([0.05, 0.3, 1.0, 3.0])
        self._cluster.agenda.after(wait, lambda: None if self.is_over else act())

    # --- machines

    def _crash(self) -> None:
        machine = self._someone()
        if machine.node is not None:
            machine.crash(power=self._random.random() < 0.6)
            self._damage(machine)

    def _crash_all(self) -> None:
        """Let the power fail everywhere."""
        for machine in self._cluster.machines:
            if machine.node is not None:
                machine.crash(power=True)

    def _after_crash(self, machine: Machine) -> None:
        self.seen["crashes"] += 1
        machine.disk.at_write = None
        self._later(lambda: self._reopen(machine))

    def _reopen(self, machine: Machine) -> None:
        """Open a node that is down, or has failed."""
        if machine.is_homeless or (machine.node is not None and machine.node.failed is None):
            return
        machine.repair_disk()
        if machine.node is not None:
            machine.close()
        if not self.is_over and self._openings.random() < FAILING_OPENINGS_SHARE:
            self._crash_soon(machine, self._openings)
        if not machine.open() and not self.is_over:
            self._later(lambda: self._reopen(machine))

    def _crash_at_write(self) -> None:
        """Let the power fail at one of the next writes."""
        self._crash_soon(self._someone(), self._random)

    def _crash_soon(self, machine: Machine, chance: Random) -> None:
        fatal = machine.disk.writes + chance.randint(1, 4)

        def fail(number: int) -> None:
            if number >= fatal:
                raise PowerFailure

        machine.disk.at_write = fail

    def _damage(self, machine: Machine) -> None:
        """Damage a segment of a log, in a copy, while no node looks: that is noticed.

        Once the power has failed the mark may be too old to tell, until something is written.
        """
        if not machine.power_has_failed and disks.check_damage(machine.disk, self._openings):
            self.seen["damage noticed"] += 1

    def _fail_write(self) -> None:
        machine = self._someone()
        number = machine.disk.writes + self._random.randint(1, 4)
        machine.disk.write_faults[number] = self._random.choice(list(WriteFault))
        self.seen["failing writes"] += 1
        self._failing.add(machine)
        self._later(lambda: self._reopen(machine))

    def _fill_disk(self) -> None:
        """Fill a disk to the reserve, so that writes are refused; or at once to the brim."""
        machine = self._someone()
        self._fill(machine, self._random.choice([0, 300, 1900, 2100]))
        self.seen["full disks"] += 1
        self._later(lambda: self._empty(machine))

    def _fill_all_disks(self) -> None:
        """Fill the disks of all machines, until it is over."""
        machines = list(self._cluster.machines)
        for machine in machines:
            self._fill(machine, self._disks.choice([0, 300, 1900, 2100]))
        self.seen["all disks full"] += 1
        for machine in machines:
            seconds = self._pace * self._disks.choice([0.05, 0.3, 1.0, 3.0])
            self._later(lambda machine=machine: self._empty(machine), seconds)  # type: ignore[misc]

    def _fill(self, machine: Machine, room_bytes: int) -> None:
        machine.disk.capacity_bytes = machine.disk.content.bytes_stored + room_bytes
        self._failing.add(machine)

    def _empty(self, machine: Machine) -> None:
        machine.disk.capacity_bytes = None
        self._reopen(machine)

    def _slow_disk(self) -> None:
        machine = self._someone()
        machine.disk_slowness = self._random.choice([10.0, 100.0, 1000.0])
        self.seen["slow disks"] += 1
        self._later(lambda: setattr(machine, "disk_slowness", 1.0))

    def _slow_down(self) -> None:
        machine = self._someone()
        machine.slowness = self._random.choice([10.0, 100.0, 500.0])
        self.seen["slow nodes"] += 1
        self._later(lambda: setattr(machine, "slowness", 1.0))

    def _fall_asleep(self) -> None:
        """Let a machine fall asleep, as by SIGSTOP, or as a virtual machine that is moved."""
        seconds = self._pace * self._random.choice([0.1, 0.5, 1.0, 2.0, 5.0])
        self._someone().asleep_until = self._cluster.agenda.now + seconds
        self.seen["sleeping nodes"] += 1

    def _lose_disk(self) -> None:
        """Lose a whole disk for good, unless that would be more than a minority of the disks."""
        if self.joining.lose_disk(self._someone()):
            self.seen["lost disks"] += 1

    def _add_node(self) -> None:
        if self.joining.add_node():
            self.seen["nodes added"] += 1

    def _retire_node(self) -> None:
        if self.joining.retire_node(self._someone()):
            self.seen["nodes retired"] += 1

    def _die(self) -> None:
        if self.joining.die(self._someone()):
            self.seen["dead machines"] += 1

    def _set_clock(self) -> None:
        """Set a clock; half of the clocks come back after a while, since errors are corrected."""
        clock = self._someone().clock
        clock.set_wall(self._random.choice(self._jumps))
        self.seen["clocks set"] += 1
        if self._clocks.random() < 0.5:
            wait = self._pace * self._clocks.choice([0.05, 0.3, 1.0, 3.0])
            self._cluster.agenda.after(wait, clock.set_right)
            self.seen["clocks that come back"] += 1

    def _close(self) -> None:
        machine = self._someone()
        if machine.node is not None:
            machine.close()
            self.seen["closings"] += 1
            self._damage(machine)
            self._later(lambda: self._reopen(machine))

    # --- the network

    def _cut(self, links: list[tuple[str, str]], name: str) -> None:
        network = self._cluster.network
        for source, target in links:
            network.cut(source, target)
        self.seen[name] += 1

        def mend() -> None:
            for source, target in links:
                network.mend(source, target)

        self._later(mend)

    def _isolate(self) -> None:
        """Cut one node off from all others, and half of the time from all clients too."""
        alone = self._someone().name
        others = [each.name for each in self._cluster.machines if each.name != alone]
        if self._random.random() < 0.5:
            others += self._cluster.places
        links = [(alone, other) for other in others] + [(other, alone) for other in others]
        self._cut(links, "isolated nodes")

    def _cut_one_way(self) -> None:
        if len(self._cluster.machines) < 2:
            return
        one, other = self._random.sample(self._cluster.machines, 2)
        self._cut([(one.name, other.name)], "one-way cuts")

    def _split(self) -> None:
        """Split the machines into two sides."""
        names = [each.name for each in self._cluster.machines]
        if len(names) < 2:
            return
        self._random.shuffle(names)
        at = self._random.randrange(1, len(names))
        links = [(one, other) for one in names[:at] for other in names[at:]]
        self._cut([*links, *((other, one) for one, other in links)], "splits")

    def _cut_off_client(self) -> None:
        place = self._random.choice(self._cluster.places)
        names = [each.name for each in self._cluster.machines]
        gone = self._random.sample(names, self._random.randint(1, len(names)))
        links = [(place, name) for name in gone] + [(name, place) for name in gone]
        self._cut(links, "clients cut off")

    def _bad_weather(self) -> None:
        choose, network = self._random.choice, self._cluster.network
        network.weather = Weather(
            lost_share=choose([0.0, 0.05, 0.3]),
            doubled_share=choose([0.0, 0.1, 0.5]),
            delay_seconds_min=choose([0.0001, 0.001, self._pace * 0.05]),
            delay_seconds_max=self._pace * choose([0.02, 0.2, 1.0]),
        )
        self.seen["bad weather"] += 1
        self._later(lambda: setattr(network, "weather", Weather()))

    # --- leaders

    def _transfer(self) -> None:
        """Move the lead to another node, under load."""
        leader = self._cluster.leader()
        if leader is not None and leader.node is not None:
            others = [each.node_id for each in self._cluster.machines if each is not leader]
            group, to = leader.node.root.replica.group, self._random.choice([None, *others])
            leader.act(lambda: group.transfer_leadership(to))
            self.seen["transfers"] += 1

    def _hand_over(self) -> None:
        """Lease and lead go to somebody else."""
        leader = self._cluster.leader()
        if leader is not None and leader.node is not None:
            leader.act(leader.node.hand_over)
            self.seen["leases handed over"] += 1
