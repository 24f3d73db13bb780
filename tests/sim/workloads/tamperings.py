"""Writes to a store, or to a client's memory, that no client made: by workload.

Each is what a fault of the store would have left. The workload's check must find it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from postroom.client.database import CoreDatabase
from postroom.ranges.requests import Accounting, Increment
from tests.sim.recorded.operations import Operation, Outcome, Record
from tests.sim.workloads.archives import Archives
from tests.sim.workloads.bank import Bank
from tests.sim.workloads.counters import POISONED, Counters
from tests.sim.workloads.jobs import Jobs
from tests.sim.workloads.keepers import NAME, Keepers
from tests.sim.workloads.large import Large
from tests.sim.workloads.ledger import Ledger
from tests.sim.workloads.lists import Lists
from tests.sim.workloads.mailboxes import Mailboxes
from tests.sim.workloads.reapers import Reapers
from tests.sim.workloads.registers import Registers
from tests.sim.workloads.ring import Ring
from tests.sim.workloads.seats import Seats
from tests.sim.workloads.trials import Trials
from tests.sim.workloads.watchers import Mirror, Watchers
from tests.sim.workloads.workload import pairs

Tampering = Callable[[CoreDatabase, Any], Awaitable[None]]
TAMPERINGS: list[tuple[str, Tampering]] = []


def tampering(workload: str) -> Callable[[Tampering], Tampering]:
    """Register what is done to the store, or to the memory, of a workload."""

    def register(tamper: Tampering) -> Tampering:
        TAMPERINGS.append((workload, tamper))
        return tamper

    return register


# --- archives -----------------------------------------------------------------------------------


@tampering("archives")
async def a_key_of_a_generation_is_lost(db: CoreDatabase, _: Archives) -> None:
    generation = await pairs(db, b"archive/")
    await db.put(b"archive/more", generation[0][1])
    for key, _value in generation[1:2]:
        await db.delete(key)
        await db.delete(b"archive/more")


@tampering("archives")
async def a_key_survives_its_generation(db: CoreDatabase, _: Archives) -> None:
    await db.put(b"archive/old", b"old 1")


@tampering("archives")
async def a_deferred_deletion_is_lost(db: CoreDatabase, _: Archives) -> None:
    await db.drain()
    await db.put(b"archive spare/0/1", b"left")


# --- bank ---------------------------------------------------------------------------------------


@tampering("bank")
async def money_appears(db: CoreDatabase, _: Bank) -> None:
    await db.put(b"bank/account/0", b"%d" % (int(await db.get(b"bank/account/0")) + 1))


@tampering("bank")
async def money_moves_without_a_receipt(db: CoreDatabase, _: Bank) -> None:
    for account, by in ((b"bank/account/0", 1), (b"bank/account/1", -1)):
        await db.put(account, b"%d" % (int(await db.get(account)) + by))


@tampering("bank")
async def a_receipt_is_lost(db: CoreDatabase, workload: Bank) -> None:
    """Lose a receipt of a transfer that came to nothing: no balance tells of it."""
    receipts = await pairs(db, b"bank/receipt/")
    void = [key for key, receipt in receipts if receipt.endswith(b" 0")]
    if not void:
        void = [b"bank/receipt/void"]
        workload.acknowledged.add(void[0])
    await db.delete(void[0])


# --- counters -----------------------------------------------------------------------------------


@tampering("counters")
async def an_increment_happens_twice(db: CoreDatabase, _: Counters) -> None:
    await db.increment(b"counter/1", 1)


@tampering("counters")
async def a_deferred_increment_is_lost(db: CoreDatabase, _: Counters) -> None:
    await db.put(b"note/more", b"2:4")


@tampering("counters")
async def a_sum_of_accounting_is_too_large(db: CoreDatabase, _: Counters) -> None:
    await db.run(lambda tx: tx.enqueue_update(Accounting(b"stats/a/0", {"seen": 1})))


@tampering("counters")
async def a_deferred_value_is_lost(db: CoreDatabase, _: Counters) -> None:
    await db.drain()
    for key, _value in (await pairs(db, b"deferred/"))[:1]:
        await db.delete(key)
        return
    await db.put(b"note/put", b"put:1")


@tampering("counters")
async def a_deletion_is_lost(db: CoreDatabase, _: Counters) -> None:
    notes = await pairs(db, b"note/")
    deleted = [key for key, note in notes if b"deleted" in note] or [b"note/del"]
    await db.put(
        deleted[0], b" ".join({*((await db.get(deleted[0])) or b"").split(), b"deleted:1"})
    )
    await db.put(b"deferred/" + deleted[0].removeprefix(b"note/"), b"there")


@tampering("counters")
async def a_dead_letter_is_lost(db: CoreDatabase, _: Counters) -> None:
    """Lose a dead letter: an increment of what is no number is discarded."""
    await db.drain()
    await db.put(POISONED, b"text0")
    await db.run(lambda tx: tx.enqueue_update(Increment(POISONED, 1)))
    await db.put(b"note/dead", b"poison:1")
    await db.drain()
    letters = await db.dead_letters(limit=1000)
    await db.discard([each.id for each in letters if each.request == Increment(POISONED, 1)][-1:])


# --- ledger -------------------------------------------------------------------------------------


@tampering("ledger")
async def a_message_with_money_is_lost(db: CoreDatabase, _: Ledger) -> None:
    await db.run(lambda tx: tx.enqueue_message(b"ledger/account/1", b"3", headers={}))
    balance = int(await db.get(b"ledger/account/0"))
    await db.put(b"ledger/account/0", b"%d" % (balance - 4))


@tampering("ledger")
async def a_message_with_money_is_there_twice(db: CoreDatabase, _: Ledger) -> None:
    await db.run(lambda tx: tx.enqueue_message(b"ledger/account/1", b"3", headers={}))


@tampering("ledger")
async def a_message_is_not_credited(db: CoreDatabase, _: Ledger) -> None:
    balance = int(await db.get(b"ledger/account/2"))
    await db.put(b"ledger/account/2", b"%d" % (balance - 5))


# --- lists, appends -----------------------------------------------------------------------------


async def _rewrite(db: CoreDatabase, prefix: bytes, change: Callable[[list[bytes]], None]) -> None:
    """Change the first list that has two elements, of two transactions."""
    for key, value in await pairs(db, prefix):
        elements = value.split()
        if len({element.partition(b".")[0] for element in elements}) > 1:
            change(elements)
            await db.put(key, b" ".join(elements))
            return
    raise AssertionError("no list is long enough")


@tampering("appends")
@tampering("lists")
async def an_element_is_lost(db: CoreDatabase, workload: Any) -> None:
    await _rewrite(db, _prefix(workload), lambda elements: elements.pop())


@tampering("appends")
@tampering("lists")
async def an_element_is_there_twice(db: CoreDatabase, workload: Any) -> None:
    await _rewrite(db, _prefix(workload), lambda elements: elements.append(elements[0]))


@tampering("appends")
@tampering("lists")
async def two_elements_change_places(db: CoreDatabase, workload: Any) -> None:
    await _rewrite(db, _prefix(workload), list.reverse)


@tampering("appends")
@tampering("lists")
async def nobody_has_appended_an_element(db: CoreDatabase, workload: Any) -> None:
    await _rewrite(db, _prefix(workload), lambda elements: elements.append(b"nobody"))


def _prefix(workload: Any) -> bytes:
    return b"list/" if isinstance(workload, Lists) else b"appends/"


@tampering("appends")
@tampering("lists")
async def half_of_a_transaction_of_unknown_outcome_is_there(
    db: CoreDatabase, workload: Any
) -> None:
    """Leave half of a transaction of unknown outcome; lists tell that it has happened."""
    record: Record = workload.record
    for transaction in reversed(record.transactions):
        appended = {key: about for what, key, about in transaction.actions if what == "append"}
        if transaction.outcome is Outcome.OK and len(appended) > 1:
            transaction.outcome, transaction.returned_at = Outcome.UNKNOWN, float("inf")
            for key, element in list(appended.items())[:1]:
                elements = (await db.get(key)).split()
                elements.remove(element)
                await db.put(key, b" ".join(elements))
            return
    raise AssertionError("no transaction has appended to two lists")


# --- jobs ---------------------------------------------------------------------------------------


@tampering("jobs")
async def a_job_is_done_twice(db: CoreDatabase, _: Jobs) -> None:
    done = await pairs(db, b"job done/")
    await db.put(done[0][0] + b" again", b"")


@tampering("jobs")
async def a_job_is_lost(db: CoreDatabase, _: Jobs) -> None:
    await db.put(b"job sent/lost", b"")


@tampering("jobs")
async def nobody_has_sent_a_job(db: CoreDatabase, _: Jobs) -> None:
    await db.put(b"job done/made up/1-1-1", b"")


@tampering("jobs")
async def what_was_acknowledged_is_not_done(db: CoreDatabase, workload: Jobs) -> None:
    workload._ended.add(b"never")


# --- large --------------------------------------------------------------------------------------


@tampering("large")
async def a_value_is_cut_and_filled_up(db: CoreDatabase, _: Large) -> None:
    await db.put(b"large/0/".ljust(20, b"k"), b"token|token|" + bytes(8))


@tampering("large")
async def a_message_is_mixed_up(db: CoreDatabase, _: Large) -> None:
    inbox = b"large inbox/" + b"i" * 1000
    await db.run(lambda tx: tx.enqueue_message(inbox, b"one|one|two|"))


# --- reapers ------------------------------------------------------------------------------------


@tampering("reapers")
async def a_message_is_lost(db: CoreDatabase, _: Reapers) -> None:
    await db.put(b"sent/lost", b"")


@tampering("reapers")
async def a_message_is_taken_twice(db: CoreDatabase, _: Reapers) -> None:
    _, name = (await pairs(db, b"taken/"))[0]
    await db.put(b"taken/again", name)


@tampering("reapers")
async def a_taken_message_lies_in_the_inbox_again(db: CoreDatabase, _: Reapers) -> None:
    _, name = (await pairs(db, b"taken/"))[0]
    await db.run(lambda tx: tx.enqueue_message(b"inbox/0", name))


@tampering("reapers")
async def nobody_has_sent_a_message(db: CoreDatabase, _: Reapers) -> None:
    await db.run(lambda tx: tx.enqueue_message(b"inbox/1", b"of nobody"))


# --- mailboxes ----------------------------------------------------------------------------------


@tampering("mailboxes")
async def a_mail_is_lost(db: CoreDatabase, _: Mailboxes) -> None:
    await db.put(b"mailbox sent/lost", b"")


@tampering("mailboxes")
async def a_taken_mail_lies_there_again(db: CoreDatabase, _: Mailboxes) -> None:
    key, _value = (await pairs(db, b"mailbox taken/"))[0]
    name = key.removeprefix(b"mailbox taken/")
    await db.run(lambda tx: tx.enqueue_message(b"mailbox/0", name))


@tampering("mailboxes")
async def nobody_has_sent_a_mail(db: CoreDatabase, _: Mailboxes) -> None:
    await db.run(lambda tx: tx.enqueue_message(b"mailbox/1", b"of nobody"))


# --- registers ----------------------------------------------------------------------------------


@tampering("registers")
async def a_write_is_lost(db: CoreDatabase, _: Registers) -> None:
    await db.delete(b"register/0")


@tampering("registers")
async def an_old_value_comes_back(db: CoreDatabase, workload: Registers) -> None:
    written = [
        each.value
        for each in workload.record.operations
        if each.key == b"register/1" and each.value is not None and each.outcome is Outcome.OK
    ]
    await db.put(b"register/1", written[0])


@tampering("registers")
async def a_read_was_stale(_: CoreDatabase, workload: Registers) -> None:
    operations = workload.record.operations
    stale = Operation("p", "get", b"register/0", None, None, 1e6, 1e6 + 1, Outcome.OK, b"nothing")
    operations.append(stale)


# --- ring ---------------------------------------------------------------------------------------


@tampering("ring")
async def two_rings(db: CoreDatabase, _: Ring) -> None:
    """Lose one of two writes to a key, by two who reorder at once."""
    first, second = b"ring/0", b"ring/" + await db.get(b"ring/0")
    third = b"ring/" + await db.get(second)
    await db.put(first, await db.get(third))


@tampering("ring")
async def a_node_is_lost(db: CoreDatabase, _: Ring) -> None:
    await db.put(b"ring/3", await db.get(b"ring/4"))


@tampering("ring")
async def a_node_too_many(db: CoreDatabase, _: Ring) -> None:
    await db.put(b"ring/9", b"0")


# --- seats --------------------------------------------------------------------------------------


@tampering("seats")
async def one_seat_too_many(db: CoreDatabase, _: Seats) -> None:
    for number in range(4):
        await db.put(b"seat/phantom %d" % number, b"")


# --- watchers -----------------------------------------------------------------------------------


def _mirror(workload: Watchers) -> Mirror:
    return next(iter(workload.mirrors.values()))


@tampering("watchers")
async def a_change_was_not_told(db: CoreDatabase, workload: Watchers) -> None:
    """Let the stream go on behind a change."""
    await db.put(b"watched/0", b"not told")
    _mirror(workload).timestamp = int(await db.now())


@tampering("watchers")
async def another_value_was_told(_: CoreDatabase, workload: Watchers) -> None:
    mirror = _mirror(workload)
    mirror.content[b"watched/of nobody"] = b"wrong"


@tampering("watchers")
async def a_deletion_was_not_told(db: CoreDatabase, workload: Watchers) -> None:
    await db.delete(b"watched/0")
    mirror = _mirror(workload)
    mirror.timestamp = int(await db.now())
    mirror.content[b"watched/0"] = b"still there"


# --- keepers ------------------------------------------------------------------------------------


@tampering("keepers")
async def a_position_was_not_kept(db: CoreDatabase, workload: Keepers) -> None:
    """Let the history that a position should protect be collected."""
    for number, mirror in workload.mirrors.items():
        workload.kept[number] = mirror.timestamp
        await db.forget_position(NAME % number)
    for _ in range(3):
        await db.put(b"kept/0", b"")
        await db._sender.sleep(100.0)


# --- trials -------------------------------------------------------------------------------------


@tampering("trials")
async def a_trial_is_lost(db: CoreDatabase, _: Trials) -> None:
    await db.put(b"trial sent/lost", b"")


@tampering("trials")
async def a_trial_was_done_and_is_there_again(db: CoreDatabase, _: Trials) -> None:
    key, _value = (await pairs(db, b"trial done/"))[0]
    name = key.split(b"/")[1]
    await db.run(lambda tx: tx.enqueue_message(b"trial/held", name))


@tampering("trials")
async def a_trial_dies_before_its_last_attempt(db: CoreDatabase, _: Trials) -> None:
    await db.put(b"trial sent/early", b"")
    await db.run(lambda tx: tx.enqueue_message(b"trial/passed", b"early"))

    async def bury(tx: Any) -> None:
        tx.bury(list(await tx.reap_queue(b"trial/passed", 1000)), "for nothing")

    await db.run(bury)
