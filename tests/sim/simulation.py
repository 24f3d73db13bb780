"""One run: a world, some workloads, and somebody who breaks things; then calm, and the reckoning.

What breaks, as chance has it:

* the power, at a write or between two, with or without what was not synced; the process alone;
* a write: it fails, and the write set is there whole or not at all;
* the disk fills up, to the reserve or to the brim;
* the wall clock is set forward or back, and time passes while nobody does anything;
* the node is closed and opened again; single clients die.

After each of these, and now and then, the checkers look at the disk. At the end the workloads do,
and the history of all that clients were told is compared with what is there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random  # noqa: TID251 - made from the seed
from typing import Final

from postroom.client.database import CoreDatabase
from postroom.kv.memory import WriteFault
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.server.node_options import NodeOptions
from tests.sim import checkers, disks, waiting_rules
from tests.sim.crowd import Crowd
from tests.sim.generators import closed_quietly
from tests.sim.history import History, Outcome
from tests.sim.page_sizes import drawn_page_sizes
from tests.sim.service_rules import check_services
from tests.sim.turn import PowerFailure
from tests.sim.workloads.drawn import WORKLOADS, besides
from tests.sim.workloads.keepers import Keepers
from tests.sim.workloads.workload import Client, Workload
from tests.sim.world import World

DAY: Final = 86_400.0
STEPS: Final = 2500
KEEPERS_SHARE: Final = 0.2
CALM_SECONDS: Final = 5.0


@dataclass
class Report:
    """What has happened in a run."""

    seed: int
    workloads: list[str]
    faults: Counter[str]
    commits: Counter[str]
    writes: int
    digest: str

    def __str__(self) -> str:
        faults = ", ".join(f"{number} {name}" for name, number in sorted(self.faults.items()))
        commits = ", ".join(f"{number} {name}" for name, number in sorted(self.commits.items()))
        return (
            f"seed {self.seed}: {' '.join(self.workloads)}; commits: {commits}; "
            f"{self.writes} writes; faults: {faults or 'none'}; {self.digest}"
        )


class Simulation:
    """See the module."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.seed = seed
        self.random = Random(f"simulation {seed}")
        self._clocks = Random(f"clocks that come back {seed}")
        choose = self.random.choice
        options = NodeOptions(
            disk_reserve_bytes=2000,
            poll_seconds=choose([0.05, 1.0, 5.0]),
            gc_ttl_seconds=choose([1.0, 60.0]),
            gc_interval_seconds=choose([0.1, 2.0]),
            rests_alone=True,
        )
        self.world = World(
            seed,
            options,
            reading_seconds=choose([0.0, 0.0001, 0.0007]),
            in_parts=self.random.random() < 0.7,
        )
        self.world.turns_away = choose([0.0, 0.5])
        self.world.host.on_crash = self._after_crash
        self.history = History()
        self.world.witness = self.history
        self.faults: Counter[str] = Counter()
        self.workloads = [each() for each in self.random.sample(WORKLOADS, choose([1, 2, 3, 4]))]
        self.workloads += besides(seed)
        if Random(f"keepers {seed}").random() < KEEPERS_SHARE:
            self.workloads.append(Keepers())
        self._steps = steps
        self._crowd = Crowd(self.world, seed, self.workloads, _start)
        self._database = self.world.database()
        self._reopen_at: int | None = None
        self._applied = 0
        self._fault_chance = choose([0.0, 0.002, 0.008])
        self._acts = [
            self._crash_at_write,
            self._crash_at_write,
            self._crash_now,
            self._fail_write,
            self._fill_disk,
            self._set_clock,
            self._set_clock,
            self._rest,
            self._close,
            self._kill_client,
            self._kill_client,
        ]

    def run(self) -> Report:
        """All of it.

        Raises:
            AssertionError: something is not as it must be.
        """
        with drawn_page_sizes(Random(f"pages {self.seed}")), closed_quietly():
            try:
                self._run()
            finally:
                self.world.abandon()
        return self._report()

    def _run(self) -> None:
        world = self.world
        assert world.host.open()
        for workload in self.workloads:
            world.run(workload.setup(self._database))
        self._crowd.begin_all(self._crowd.begin)
        for _ in range(self._steps):
            self._inject_faults()
            world.step()
            self._watch_memory()
        self._calm()
        self._reckon()

    def _report(self) -> Report:
        outcomes = (each.outcome for each in self.history.attempts.values())
        return Report(
            self.seed,
            [type(each).__name__.lower() for each in self.workloads],
            self.faults,
            Counter(outcome.name.lower() for outcome in outcomes),
            self.world.host.disk.writes,
            self.world.digest(),
        )

    # --- what breaks

    def _inject_faults(self) -> None:
        host = self.world.host
        if host.node is None or host.node.failed is not None:
            self._reopen()
        elif self.random.random() < self._fault_chance:
            self.random.choice(self._acts)()
        elif self.random.random() < 0.004:
            self._look()

    def _reopen(self) -> None:
        """Open a node that is down, or has failed, after a while."""
        host, world = self.world.host, self.world
        if self._reopen_at is None:
            self._reopen_at = world.steps + self.random.choice([0, 5, 50])
        if world.steps < self._reopen_at:
            return
        self._reopen_at = None
        host.disk.at_write = None
        host.disk.capacity_bytes = None
        if host.node is not None:
            host.close()
        self._look()
        if self.random.random() < 0.3:
            self._crash_at_write()
        host.open()
        self._look()

    def _after_crash(self) -> None:
        self.faults["crashes"] += 1
        self.world.host.disk.at_write = None

    def _crash_at_write(self) -> None:
        """Let the power fail at one of the next writes."""
        disk = self.world.host.disk
        fatal = disk.writes + self.random.randint(1, 4)

        def fail(number: int) -> None:
            if number >= fatal:
                raise PowerFailure

        disk.at_write = fail

    def _crash_now(self) -> None:
        power = self.random.random() < 0.5
        self.world.host.crash(power=power)
        if not power and not self.world.host.power_has_failed:
            self._damage()

    def _damage(self) -> None:
        """Damage a segment of the log, in a copy, while no node looks.

        Once the power has failed the mark may be too old to tell, until something is written.
        """
        told = disks.check_damage(self.world.host.disk, self.random)
        if told:
            self.faults["damage noticed"] += 1

    def _fail_write(self) -> None:
        disk = self.world.host.disk
        number = disk.writes + self.random.randint(1, 4)
        disk.write_faults[number] = self.random.choice(list(WriteFault))
        self.faults["failing writes"] += 1

    def _fill_disk(self) -> None:
        """To the reserve, so that writes are refused; or at once to the brim."""
        disk = self.world.host.disk
        disk.capacity_bytes = disk.content.bytes_held + self.random.choice([0, 300, 1900, 2100])
        self.faults["full disks"] += 1

        def empty() -> None:
            disk.capacity_bytes = None

        self.world.agenda.after(self.random.choice([0.1, 1.0]), empty)

    def _set_clock(self) -> None:
        """Half of the clocks that are set come back after a while: errors are corrected."""
        jump = self.random.choice([-3600, -30, -0.5, 0.7, 5, 10, 70, 200])
        if self._clocks.random() < 0.2:
            jump = self._clocks.choice([-DAY, DAY])
        self.world.clock.set_wall(jump)
        if self._clocks.random() < 0.5:
            self.world.agenda.after(
                self._clocks.choice([0.05, 1.0, 6.0]), self.world.clock.set_right
            )
        self.faults["clocks set"] += 1

    def _rest(self) -> None:
        """Nobody does anything for a while: leases, transactions and garbage expire."""
        self.world.clock.advance(self.random.choice([0.5, 1.5, 10, 80]))
        self.faults["rests"] += 1

    def _close(self) -> None:
        self.world.host.close()
        self.faults["closings"] += 1
        if not self.world.host.power_has_failed:
            self._damage()

    def _kill_client(self) -> None:
        place = self.random.choice(sorted(self._crowd.members))
        if self._crowd.kill(place):
            self._crowd.begin(place)
            self.faults["dead clients"] += 1

    # --- what is checked

    def _look(self) -> None:
        """Check that the disk is in order, and its state only goes forward."""
        checkers.check(disks.content(self.world.host.disk))
        self.world.note("look", self.world.host.disk.writes)

    def _watch_memory(self) -> None:
        """Check that what is kept in memory for clients is in order."""
        node = self.world.host.node
        if node is not None:
            waiting_rules.check_step(node)

    def _calm(self) -> None:
        """Nothing breaks any more; clients come to an end."""
        world, host = self.world, self.world.host
        self._fault_chance = 0.0
        self._crowd.is_over = True
        host.disk.write_faults.clear()
        host.disk.at_write = None
        host.disk.capacity_bytes = None
        world.turns_away = 0.0
        if host.node is not None:
            host.close()
        assert host.open(), "the store does not open any more"
        assert host.node is not None
        world.clock.set_right()  # however far ahead it was: and yet nothing is late
        world.let_pass(CALM_SECONDS)
        self._crowd.kill_all()
        database = world.database("somebody who is killed")
        task = world.spawn("leave", waiting_rules.leave_everything(database))
        world.let_pass(1.0)
        world.kill(task, database)
        world.clock.advance(TRANSACTION_SECONDS_MAX)  # what the dead hold is free again
        world.let_pass(CALM_SECONDS)
        assert host.node is not None
        waiting_rules.check_rest(host.node)

    def _reckon(self) -> None:
        world = self.world
        for workload in self.workloads:
            world.run(workload.check(self._database))
        assert world.host.node is not None
        check_services(world.host.node.describe())
        disks.write_gathered(world.host.node)
        content = checkers.check(disks.content(world.host.disk))
        self.history.check(content)
        self._check_status(world.run(_counters(self._database)), content)
        world.host.close()
        assert world.host.open()
        self._look()
        world.host.close()
        self._look()

    def _check_status(self, told: object, content: checkers.Content) -> None:
        checkers.require(told == content.counters, f"told {told}, stored {content.counters}")


async def _start(workload: Workload, client: Client) -> None:
    await workload.start(client)


async def _counters(db: CoreDatabase) -> object:
    return (await db.status()).counters


__all__ = ["Outcome", "Report", "Simulation"]
