"""Every bug that the simulation has found, as a small script that failed before it was mended."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from postroom.errors import CommitUnknown, TransactionConflict, Unavailable
from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock, from_milliseconds
from postroom.kv.log_device import WriteFault
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging.requests import DeliverDue, EnqueueMessage, EnqueueUpdate, ExecuteDue
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    GetForUpdate,
    Increment,
    Put,
    ReleaseLocks,
)
from postroom.server.assembly import NodeOptions
from tests.sim import disks
from tests.sim.cluster.embedded import EmbeddedStore, transaction
from tests.sim.sender import Answer


def opened(**options: Any) -> EmbeddedStore:
    store = EmbeddedStore(0, NodeOptions(disk_reserve_bytes=0, **options))
    assert opens(store)
    return store


def opens(store: EmbeddedStore) -> bool:
    """Return whether the store opens again, and comes to rest."""
    if store.machine.open():
        store.let_pass(0.01)
    return store.machine.serves()


def take_turn(store: EmbeddedStore) -> None:
    """Take a whole turn, after the one that may be under way."""
    store.machine.end_turn()
    store.machine.take_part()
    store.machine.end_turn()


# --- the head cursor of an outbox ------------------------------------------------------------


def test_an_update_stored_while_later_entries_are_taken_is_not_passed_over() -> None:
    """It passed over one stored with the proposal that took an entry due later.

    The head cursor of the outbox moved to t + 2, past the update at t, which stayed in the outbox
    until the node was opened again. All that came later overtook it.
    """
    store = opened(poll_seconds=1000.0)
    db = store.database()
    began = store.now()
    first = db.begin()
    first.enqueue_update(Increment(b"key", 1), execute_at=1.0)
    first.enqueue_update(Increment(b"key", 1), execute_at=3600.0)
    moment = int(store.run(first.commit())) + from_milliseconds(1000)
    store.agenda.stand_still(1.1)

    node = store.machine.node
    assert node is not None
    store.submit(transaction(1, EnqueueUpdate(Increment(b"key", 1)), began=began))
    node.root.upkeep(ExecuteDue(512))
    evaluator = node.root.replica.evaluator
    evaluator._clock = _Scripted(node.clock, [moment - 2, moment + 1])
    take_turn(store)
    evaluator._clock = node.clock

    store.let_pass(0.1)
    store.run(db.drain())
    assert store.run(db.get(b"key")) == (2).to_bytes(8, "big")
    store.check()


class _Scripted:
    """A clock whose next answers are known."""

    def __init__(self, clock: Any, answers: list[int]) -> None:
        self._clock = clock
        self._answers = iter(answers)

    def now(self) -> int:
        answer: int = next(self._answers, 0) or self._clock.now()
        return answer

    following = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def test_a_message_stored_while_others_are_delivered_does_not_wait_for_the_next_poll() -> None:
    """One proposal adds as many entries as it takes out: the services heard of none."""
    store = opened(poll_seconds=1000.0)
    db = store.database()
    store.run(db.run(lambda tx: tx.enqueue_message(b"far", b"", deliver_at=3600.0)))
    store.run(db.run(lambda tx: tx.enqueue_message(b"key", b"scheduled", deliver_at=0.5)))
    node = store.machine.node
    assert node is not None
    store.agenda.stand_still(0.6)
    store.submit(transaction(1, EnqueueMessage(b"key", b"behind"), began=store.now()))
    node.root.upkeep(DeliverDue(512))
    take_turn(store)
    store.let_pass(1.0)
    assert len(store.run(db.peek(b"key"))) == 2


# --- a write that fails, and took place --------------------------------------------------------


def test_a_read_that_waited_for_a_write_of_unknown_outcome_does_not_see_the_old_value() -> None:
    """It must not be answered from before the write, at a timestamp after it.

    The write was there when the store was opened again, so the answer was wrong. A transaction that
    had read it was committed then, because nothing had changed *after* its read.
    """
    store = opened()
    db = store.database()
    store.run(db.put(b"key", b"old"))
    store.machine.end_turn()
    disk = store.machine.disk
    disk.write_faults[disk.writes + 1] = WriteFault.THERE_WHOLE
    store.submit(transaction(1, Put(b"key", b"new"), began=store.now()))
    store.machine.take_part()
    read = store.submit(Get(b"key"))
    assert not read.done
    store.machine.end_turn()
    assert isinstance(read.error, Unavailable)
    store.machine.close()
    assert opens(store)
    assert store.run(db.get(b"key")) == b"new"


# --- a device that fails when the clock's ceiling is stored ------------------------------------


@pytest.mark.parametrize("fault", list(WriteFault))
def test_a_read_survives_that_the_ceiling_cannot_be_stored(fault: WriteFault) -> None:
    """``EngineFailed`` came out of ``get``, and the node did not notice that it had failed."""
    store = opened()
    disk = store.machine.disk
    store.agenda.stand_still(2.0)
    disk.write_faults[disk.writes + 1] = fault
    read = store.submit(Get(b"key"))
    assert read.done
    store.let_pass(0.1)
    assert not store.machine.serves()
    put = store.submit(transaction(1, Put(b"key", b""), began=0))
    assert isinstance(put.error, Unavailable)
    store.machine.close()
    assert opens(store)


@pytest.mark.parametrize("fault", list(WriteFault))
def test_a_commit_survives_that_the_ceiling_cannot_be_stored(fault: WriteFault) -> None:
    """``EngineFailed`` came out of the turn, and whoever waited did so for ever."""
    store = opened()
    disk = store.machine.disk
    store.agenda.stand_still(5.0)
    put = store.submit(transaction(1, Put(b"key", b""), began=0))
    disk.write_faults[disk.writes + 1] = fault
    store.let_pass(0.1)
    assert isinstance(put.error, CommitUnknown | Unavailable)
    assert not store.machine.serves()
    store.machine.close()
    assert opens(store)


def test_a_timestamp_stays_below_a_ceiling_that_could_not_be_stored() -> None:
    store = opened()
    ceiling = _stored_ceiling(store.machine.disk)
    store.agenda.stand_still(5.0)
    disk = store.machine.disk
    disk.write_faults[disk.writes + 1] = WriteFault.NOT_AT_ALL
    assert store.now() < ceiling
    assert store.now() < ceiling


def _stored_ceiling(disk: MemoryDisk) -> int:
    return int.from_bytes(disks.logged(disk).get(keys.store_key("clock ceiling")) or b"", "big")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("fault", list(WriteFault))
def test_a_store_that_cannot_be_written_does_not_open(number: int, fault: WriteFault) -> None:
    """``EngineFailed``, or a failed assertion, came out of it, and the folder stayed locked."""
    store = EmbeddedStore(0)
    store.machine.disk.write_faults[number] = fault
    assert not opens(store)
    MemoryEngine(store.machine.disk).close()
    assert opens(store)


@pytest.mark.parametrize("number", [1, 2])
def test_closing_lets_go_of_a_device_that_fails(number: int) -> None:
    """``EngineFailed`` came out of ``close``, and the folder stayed locked."""
    store = opened()
    store.run(store.database().put(b"key", b""))
    disk = store.machine.disk
    disk.write_faults[disk.writes + number] = WriteFault.NOT_AT_ALL
    store.machine.close()
    assert opens(store)


# --- arguments that cannot be stored -------------------------------------------------------------


class _Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize("delay", [None, 0.1])
def test_a_header_may_be_a_timestamp_or_another_kind_of_number(delay: float | None) -> None:
    """It could not be packed: the turn failed, and all who waited for it did so for ever."""
    store = opened()
    db = store.database()
    now = db.now()
    headers = {"at": now, "level": _Level.HIGH}
    store.run(db.run(lambda tx: tx.enqueue_message(b"key", b"", headers=headers, deliver_at=delay)))
    store.let_pass(1.0)
    message = store.run(db.peek(b"key"))[0]
    assert message.headers == {"at": int(now), "level": 3}


def test_text_that_utf_8_cannot_hold_is_refused() -> None:
    """It is refused in names and in contents of headers."""
    db = opened().database()
    for headers in ({"name": "\ud800"}, {"\ud800": "content"}):
        with pytest.raises(ValueError, match="no text that can be stored"):
            db.begin().enqueue_message(b"key", b"", headers=headers)


def test_an_increment_may_be_another_kind_of_number() -> None:
    store = opened()
    db = store.database()
    by = db.now()
    store.run(db.run(lambda tx: tx.enqueue_update(Increment(b"key", by), execute_at=0.1)))
    store.let_pass(1.0)
    assert int.from_bytes(store.run(db.get(b"key")), "big") == int(by)
    store.check()


# --- committing again after a restart ------------------------------------------------------------


def test_a_commit_is_known_again_although_its_client_began_under_a_clock_that_was_ahead() -> None:
    """The wall clock is set back between the beginning of a transaction and its commit.

    After a crash the new life began below that, so the transaction counted as new, and was
    committed once more.
    """
    store = opened()
    store.agenda.stand_still(1.0)
    store.clock.set_wall(60.0)
    began = store.reading()
    store.clock.set_wall(-60.0)
    request = transaction(1, Increment(b"key", 1), began=began)
    first = store.submit(request)
    store.let_pass(1.0)
    assert first.error is None
    store.machine.crash(power=True)
    assert opens(store)
    store.let_pass(1.0)
    again = store.submit(request)
    store.let_pass(1.0)
    assert again.error is None
    assert again.result == first.result
    assert store.run(store.database().get(b"key")) == (1).to_bytes(8, "big")


# --- locks


def test_a_transaction_that_loses_when_its_lock_is_free_waits_no_more() -> None:
    """It was refused, and yet known to wait for that lock until the next lease (embedded 5108)."""
    store = opened()
    store.run(store.database().put(b"key", b"0"))
    began = store.now()
    writer = transaction(1, Put(b"key", b"1"), began=began)
    assert store.run(_awaited(store.submit(_for_update(writer, began)))).value == b"0"
    waits = store.submit(_for_update(transaction(2, began=began), began))
    store.run(_awaited(store.submit(writer)))
    assert isinstance(waits.error, TransactionConflict)
    assert store.machine.node is not None
    assert store.machine.node.sizes()["lock waits"] == 0


def test_a_commit_whose_lock_was_free_at_once_is_forgotten_when_it_is_withdrawn() -> None:
    """It was dropped without an answer, and looked at once a second for ever (embedded 60)."""
    store = opened()
    began = store.now()
    holder, waits = transaction(1, began=began), transaction(2, Put(b"key", b"2"), began=began)
    store.run(_awaited(store.submit(_for_update(holder, began))))
    store.submit(transaction(3, Put(b"other", b""), began=began))
    commit = store.submit(waits)
    store.machine.take_part()
    assert store.machine.node is not None
    assert not store.machine.node.sizes()["commits that wait for locks"]
    store.submit(ReleaseLocks(holder.transaction_id))
    store.machine.end_turn()
    assert store.machine.node.sizes()["commits that wait for locks"] == 1
    assert not store.withdraw(commit), "it is too late"
    store.let_pass(2.0)
    assert isinstance(commit.error, TransactionConflict)
    assert not store.machine.node.sizes()["commits that wait for locks"]


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
