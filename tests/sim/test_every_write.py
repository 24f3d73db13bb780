"""A fixed scenario, broken off at every single write that the engine makes.

At write k the power fails before it, with and without loss of what was not synced. In other runs
the process dies right after it, or the write fails, and is there whole or not at all. Each time the
store is opened again and the scenario goes on, to the same end. Then the same with two failures in
a row, the second one during recovery.
"""

from __future__ import annotations

import pytest

from postroom.client.database import CoreDatabase
from postroom.kv.log_device import WriteFault
from postroom.server.assembly import NodeOptions
from tests.sim.scenario import Scenario, overwrite, poison, send, send_behind, write
from tests.sim.turn import PowerFailure, ProcessDied

SYNCED = NodeOptions(disk_reserve_bytes=0, poll_seconds=5.0, gc_interval_seconds=5.0)
UNSYNCED = NodeOptions(disk_reserve_bytes=0, poll_seconds=5.0, gc_interval_seconds=5.0, sync=False)


def writes_of_the_scenario() -> int:
    return Scenario(SYNCED).run()


def test_the_scenario_survives_a_fault_at_every_write() -> None:
    assert writes_of_the_scenario() > 20


def test_the_scenario_repeats_its_writes() -> None:
    assert writes_of_the_scenario() == writes_of_the_scenario()


def crash_at(scenario: Scenario, numbers: list[int], *, power: bool) -> None:
    """Let the power fail, or the process die, before each of these writes."""

    def fail(number: int) -> None:
        if number in numbers:
            numbers.remove(number)
            raise PowerFailure if power else ProcessDied

    scenario.store.machine.disk.at_write = fail


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_a_crash_before_every_write(power: bool) -> None:
    for number in range(1, writes_of_the_scenario() + 1):
        scenario = Scenario(SYNCED)
        crash_at(scenario, [number], power=power)
        scenario.run()


@pytest.mark.parametrize("fault", list(WriteFault))
def test_every_write_fails(fault: WriteFault) -> None:
    for number in range(1, writes_of_the_scenario() + 1):
        scenario = Scenario(SYNCED)
        scenario.fail_write(number, fault)
        scenario.run()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_crash_at_every_write_and_another_one_during_recovery(after: int) -> None:
    for number in range(1, writes_of_the_scenario() + 1):
        scenario = Scenario(SYNCED)
        crash_at(scenario, [number, number + after], power=True)
        scenario.run()


def test_the_process_dies_at_every_write_that_was_not_synced() -> None:
    """Without syncing, what was written survives the death of the process."""
    for number in range(1, Scenario(UNSYNCED).run() + 1):
        scenario = Scenario(UNSYNCED)
        crash_at(scenario, [number], power=False)
        scenario.run()


def test_a_loss_of_power_without_syncing_leaves_something_sound() -> None:
    """Log and state may have lost different parts; what is there then is in order."""
    for number in range(1, Scenario(UNSYNCED).run() + 1, 4):
        scenario = Scenario(UNSYNCED)
        crash_at(scenario, [number], power=True)
        store = scenario.store
        store.heals = True
        store.machine.on_crash = lambda _, store=store: store.check()  # type: ignore[misc]
        assert store.machine.open() or store.machine.open()
        store.run(write_without_checking(store.database()))
        store.machine.reopen()
        store.check()


async def write_without_checking(db: CoreDatabase) -> None:
    for step in (write, overwrite, send, send_behind, poison, write):
        await db.run(step)
        await db._sender.sleep(0.2)
