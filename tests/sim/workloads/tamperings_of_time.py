"""The same as :mod:`.tamperings`: of what waits, and of what is carried out later."""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.ranges.requests import Accounting
from tests.sim.workloads.appointments import DIARY, Appointments
from tests.sim.workloads.contenders import Contenders
from tests.sim.workloads.spans import INBOX, Spans
from tests.sim.workloads.tamperings import tampering
from tests.sim.workloads.waiters import Waiters
from tests.sim.workloads.workload import pairs, reap_all


async def _take_one(db: CoreDatabase, key: bytes) -> Any:
    """Take one message out of an inbox that is not empty when everything is due."""
    await db.drain()

    async def take(tx: Any) -> Any:
        return list(await tx.reap_queue(key, 1))

    (message,) = await db.run(take)
    return message


async def _settled(db: CoreDatabase) -> None:
    """Wait until all that was planned is over."""
    await db._sender.sleep(4.0)
    await db.drain()


# --- appointments -------------------------------------------------------------------------------


@tampering("appointments")
async def an_appointment_is_missed(db: CoreDatabase, workload: Appointments) -> None:
    await _settled(db)
    message = await _take_one(db, DIARY)
    assert b"message/" + message.value not in workload.cancelled


@tampering("appointments")
async def an_update_is_missed(db: CoreDatabase, _: Appointments) -> None:
    await _settled(db)
    key, _value = (await pairs(db, b"appointments/kept/"))[0]
    await db.delete(key)


@tampering("appointments")
async def what_was_cancelled_takes_place(db: CoreDatabase, workload: Appointments) -> None:
    await _settled(db)
    messages = [name for name in sorted(workload.cancelled) if name.startswith(b"message/")]
    name = messages[0].removeprefix(b"message/")
    await db.run(lambda tx: tx.enqueue_message(DIARY, name))


@tampering("appointments")
async def an_appointment_takes_place_twice(db: CoreDatabase, _: Appointments) -> None:
    await _settled(db)
    message = (await db.peek(DIARY, 1))[0]
    await db.run(lambda tx: tx.enqueue_message(DIARY, message.value))


# --- spans --------------------------------------------------------------------------------------


@tampering("spans")
async def what_was_put_after_a_deletion_is_gone(db: CoreDatabase, _: Spans) -> None:
    await db.drain()
    kept = (await db.get(b"mark/0")).partition(b"|")[0]
    await db.delete(b"span/0/kept-" + kept)


@tampering("spans")
async def a_key_outlives_its_deletion(db: CoreDatabase, _: Spans) -> None:
    await db.put(b"span/1/0-0-1-0", b"v")


@tampering("spans")
async def a_large_message_is_lost(db: CoreDatabase, _: Spans) -> None:
    if not await reap_all(db, INBOX):
        await db.put(b"spans/sent/lost", b"")


@tampering("spans")
async def a_sum_was_not_carried_out(db: CoreDatabase, _: Spans) -> None:
    await db.put(b"spans/summed/more", b"")


@tampering("spans")
async def a_sum_was_carried_out_twice(db: CoreDatabase, _: Spans) -> None:
    await db.run(lambda tx: tx.enqueue_update(Accounting(b"deep", {"metric 7": 1})))


# --- contenders ---------------------------------------------------------------------------------


@tampering("contenders")
async def a_token_appears(db: CoreDatabase, _: Contenders) -> None:
    await db.put(b"contended/0", b"1000")


@tampering("contenders")
async def somebody_loses_again_and_again(_: CoreDatabase, contenders: Contenders) -> None:
    contenders.conflicts = 100


# --- waiters ------------------------------------------------------------------------------------


@tampering("waiters")
async def who_gave_up_has_taken_a_message(db: CoreDatabase, _: Waiters) -> None:
    def send(tx: Any) -> None:
        tx.enqueue_message(b"wait/0", b"taken by nobody")
        tx.put(b"posted/taken by nobody", b"")

    await db.run(send)
    await reap_all(db, b"wait/0")


@tampering("waiters")
async def two_who_waited_got_the_same_message(db: CoreDatabase, _: Waiters) -> None:
    _key, name = (await pairs(db, b"got/"))[0]
    await db.put(b"got/again", name)


@tampering("waiters")
async def nobody_has_sent_what_somebody_waited_for(db: CoreDatabase, _: Waiters) -> None:
    await db.run(lambda tx: tx.enqueue_message(b"wait/1", b"of nobody"))
