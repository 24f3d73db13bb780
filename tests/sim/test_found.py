"""Every bug that the simulation has found, as a small script that failed before it was mended."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from postroom.errors import CommitUnknown, TransactionConflict, Unavailable
from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock, Timestamp, from_milliseconds
from postroom.kv.memory import MemoryDisk, MemoryEngine, WriteFault
from postroom.messaging.requests import DeliverDue, EnqueueMessage
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    GetForUpdate,
    Increment,
    Put,
)
from postroom.server.node_options import NodeOptions
from tests.sim import checkers, disks
from tests.sim.sender import Answer, SimulatedSender
from tests.sim.world import World


def opened(**options: Any) -> World:
    world = World(0, NodeOptions(disk_reserve_bytes=0, **options))
    assert opens(world)
    return world


def opens(world: World) -> bool:
    """Whether the store opens again, and comes to rest."""
    if world.host.open():
        world.let_pass(0.01)
    return world.host.serves()


def sent(world: World, request: Any) -> Answer:
    """Send a request that the node has received, and not evaluated yet."""
    answer = Answer(SimulatedSender(world, world.random), request)
    world.host.submit(answer)
    return answer


def take_turn(world: World) -> None:
    """Take a whole turn, after the one that may be under way."""
    end_turn(world)
    world.host.take_part()
    end_turn(world)


def end_turn(world: World) -> None:
    while world.host.busy:
        world.host.take_part()


def transaction(number: int, *writes: Any, began: int) -> CommitTransaction:
    name = b"client 1" + number.to_bytes(8, "big")
    return CommitTransaction(name, began, 60.0, 0, b"anchor", [], [], list(writes))


# --- the head cursor of an outbox ------------------------------------------------------------


def test_a_message_stored_while_later_entries_are_taken_is_not_passed_over() -> None:
    """A message committed at t, stored; in the same proposal one due at t + 1 is taken at t + 2.

    The head cursor of the outbox moved to t + 1, past the message at t, which stayed in the outbox
    until the node was opened again, and was overtaken by all that came later.
    """
    world = opened(poll_seconds=1000.0)
    db = world.database()
    began = world.now()
    moment = (began | 0xFFFF) + 1 + from_milliseconds(1000)
    world.run(db.run(lambda tx: tx.enqueue_message(b"far", b"", deliver_at=3600.0)))
    due = Timestamp(moment).datetime
    world.run(db.run(lambda tx: tx.enqueue_message(b"key", b"due first", deliver_at=due)))
    world.clock.advance(1.1)

    node = world.host.node
    assert node is not None
    sent(world, transaction(1, EnqueueMessage(b"key", b"behind"), began=began))
    node.upkeep(DeliverDue(512))
    # Asking for the lease, the commit, and the delivery that the proposal ends with.
    scripted = _Scripted(node.clock, [moment - 3, moment - 2, moment + 1])
    node.replica._clock = scripted  # type: ignore[assignment]
    take_turn(world)
    node.replica._clock = node.clock

    world.let_pass(0.1)
    world.run(db.drain())
    assert [message.value for message in world.run(db.peek(b"key"))] == [b"due first", b"behind"]
    checkers.check(disks.content(world.host.disk))


class _Scripted:
    """A clock whose next answers are known."""

    def __init__(self, clock: Any, answers: list[int]) -> None:
        self._clock = clock
        self._answers = iter(answers)

    def now(self) -> int:
        answer: int = next(self._answers, 0) or self._clock.now()
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def test_a_message_stored_while_others_are_delivered_does_not_wait_for_the_next_poll() -> None:
    """As many leave the outbox as enter it in one proposal: the services heard of nothing."""
    world = opened(poll_seconds=1000.0)
    db = world.database()
    world.run(db.run(lambda tx: tx.enqueue_message(b"far", b"", deliver_at=3600.0)))
    world.run(db.run(lambda tx: tx.enqueue_message(b"key", b"scheduled", deliver_at=0.5)))
    node = world.host.node
    assert node is not None
    world.clock.advance(0.6)
    sent(world, transaction(1, EnqueueMessage(b"key", b"behind"), began=world.now()))
    node.upkeep(DeliverDue(512))
    take_turn(world)
    world.let_pass(1.0)
    assert len(world.run(db.peek(b"key"))) == 2


# --- a write that fails, and took place --------------------------------------------------------


def test_a_read_that_waited_for_a_write_of_unknown_outcome_does_not_see_the_old_value() -> None:
    """The read was answered from before the write, at a timestamp after it.

    The write was there when the store was opened again, so the answer was wrong; and a transaction
    that had read so was committed then, because nothing had changed *after* its read.
    """
    world = opened()
    db = world.database()
    world.run(db.put(b"key", b"old"))
    end_turn(world)
    disk = world.host.disk
    disk.write_faults[disk.writes + 1] = WriteFault.THERE_WHOLE
    sent(world, transaction(1, Put(b"key", b"new"), began=world.now()))
    world.host.take_part()
    read = sent(world, Get(b"key"))
    assert not read.done
    end_turn(world)
    assert isinstance(read.error, Unavailable)
    world.host.close()
    assert opens(world)
    assert world.run(db.get(b"key")) == b"new"


# --- a device that fails when the clock's ceiling is stored ------------------------------------


@pytest.mark.parametrize("fault", list(WriteFault))
def test_a_read_survives_that_the_ceiling_cannot_be_stored(fault: WriteFault) -> None:
    """``EngineFailed`` came out of ``get``, and the node did not notice that it had failed."""
    world = opened()
    disk = world.host.disk
    world.clock.advance(2.0)
    disk.write_faults[disk.writes + 1] = fault
    read = sent(world, Get(b"key"))
    assert read.done
    world.let_pass(0.1)
    assert not world.host.serves()
    put = sent(world, transaction(1, Put(b"key", b""), began=0))
    assert isinstance(put.error, Unavailable)
    world.host.close()
    assert opens(world)


@pytest.mark.parametrize("fault", list(WriteFault))
def test_a_commit_survives_that_the_ceiling_cannot_be_stored(fault: WriteFault) -> None:
    """``EngineFailed`` came out of the turn, and whoever waited did so for ever."""
    world = opened()
    disk = world.host.disk
    world.clock.advance(5.0)
    put = sent(world, transaction(1, Put(b"key", b""), began=0))
    disk.write_faults[disk.writes + 1] = fault
    world.let_pass(0.1)
    assert isinstance(put.error, CommitUnknown | Unavailable)
    assert not world.host.serves()
    world.host.close()
    assert opens(world)


def test_a_timestamp_stays_below_a_ceiling_that_could_not_be_stored() -> None:
    world = opened()
    ceiling = _stored_ceiling(world.host.disk)
    world.clock.advance(5.0)
    disk = world.host.disk
    disk.write_faults[disk.writes + 1] = WriteFault.NOT_AT_ALL
    assert world.now() < ceiling
    assert world.now() < ceiling


def _stored_ceiling(disk: MemoryDisk) -> int:
    return int.from_bytes(disks.logged(disk).get(keys.store_key("clock ceiling")) or b"", "big")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("fault", list(WriteFault))
def test_a_store_that_cannot_be_written_does_not_open(number: int, fault: WriteFault) -> None:
    """``EngineFailed``, or a failed assertion, came out of it, and the folder stayed locked."""
    world = World(0)
    world.host.disk.write_faults[number] = fault
    assert not opens(world)
    MemoryEngine(world.host.disk).close()
    assert opens(world)


def test_closing_lets_go_of_a_device_that_fails() -> None:
    """``EngineFailed`` came out of ``close``, and the folder stayed locked."""
    world = opened()
    disk = world.host.disk
    disk.write_faults[disk.writes + 1] = WriteFault.NOT_AT_ALL
    world.host.close()
    assert opens(world)


# --- arguments that cannot be stored -------------------------------------------------------------


class _Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize("delay", [None, 0.1])
def test_a_header_may_be_a_timestamp_or_another_kind_of_number(delay: float | None) -> None:
    """It could not be packed: the turn failed, and all who waited for it did so for ever."""
    world = opened()
    db = world.database()
    now = db.now()
    headers = {"at": now, "level": _Level.HIGH}
    world.run(db.run(lambda tx: tx.enqueue_message(b"key", b"", headers=headers, deliver_at=delay)))
    world.let_pass(1.0)
    message = world.run(db.peek(b"key"))[0]
    assert message.headers == {"at": int(now), "level": 3}


def test_text_that_utf_8_cannot_hold_is_refused() -> None:
    """Likewise."""
    db = opened().database()
    for headers in ({"name": "\ud800"}, {"\ud800": "content"}):
        with pytest.raises(ValueError, match="no text that can be stored"):
            db.begin().enqueue_message(b"key", b"", headers=headers)


def test_an_increment_may_be_another_kind_of_number() -> None:
    world = opened()
    db = world.database()
    by = db.now()
    world.run(db.run(lambda tx: tx.enqueue_update(Increment(b"key", by), execute_at=0.1)))
    world.let_pass(1.0)
    assert int.from_bytes(world.run(db.get(b"key")), "big") == int(by)
    checkers.check(disks.content(world.host.disk))


# --- committing again after a restart ------------------------------------------------------------


def test_a_commit_is_known_again_although_its_client_began_under_a_clock_that_was_ahead() -> None:
    """The wall clock is set back between the beginning of a transaction and its commit.

    After a crash the new life began below that, so the transaction counted as new, and was
    committed once more.
    """
    world = opened()
    world.clock.advance(1.0)
    world.clock.set_wall(60.0)
    began = world.host.reading()
    world.clock.set_wall(-60.0)
    request = transaction(1, Increment(b"key", 1), began=began)
    first = sent(world, request)
    world.let_pass(1.0)
    assert first.error is None
    world.host.crash(power=True)
    assert opens(world)
    world.let_pass(1.0)
    again = sent(world, request)
    world.let_pass(1.0)
    assert again.error is None
    assert again.result == first.result
    assert world.run(world.database().get(b"key")) == (1).to_bytes(8, "big")


# --- locks


def test_a_transaction_that_loses_when_its_lock_is_free_waits_no_more() -> None:
    """It was refused, and yet known to wait for that lock until the next lease (embedded 5108)."""
    world = opened()
    world.run(world.database().put(b"key", b"0"))
    began = world.now()
    writer = transaction(1, Put(b"key", b"1"), began=began)
    assert world.run(_awaited(sent(world, _for_update(writer, began)))).value == b"0"
    waits = sent(world, _for_update(transaction(2, began=began), began))
    world.run(_awaited(sent(world, writer)))
    assert isinstance(waits.error, TransactionConflict)
    assert world.host.node is not None
    assert world.host.node.sizes()["lock waits"] == 0


def _for_update(request: CommitTransaction[Any], at: int) -> GetForUpdate:
    return GetForUpdate(b"key", at, request.transaction_id, 60.0, at)


async def _awaited(answer: Answer) -> Any:
    return await answer


# --- the clock


def test_a_clock_whose_ceiling_cannot_be_stored_stays_below_it() -> None:
    """A node that is about to stop must not read in the future of its successor.

    The successor rests at its ceiling (embedded seed 33).
    """
    stores = True
    clock = HybridLogicalClock(lambda: 1000, lambda: 0.0, 0, lambda _: stores)
    first, ceiling = clock.now(), clock._ceiling
    assert first < ceiling
    stores = False
    clock._wall = lambda: 1_000_000
    found = [clock.now() for _ in range(3)]
    clock._last = ceiling - 2
    found += [clock.now() for _ in range(3)]
    assert max(found) < ceiling
    assert found == sorted(found)
