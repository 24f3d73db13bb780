"""The job audit on a store of several ranges: what is between them is neither lost nor doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.kv import keys
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.queues.slots import Slots, slots_key
from postroom.messaging.requests import InboxIndexEntry
from postroom.pipeline.jobs import audit
from postroom.ranges.requests import Accounting
from tests.backup.moves import CUTS, move
from tests.client.test_recount import fill
from tests.pipeline.jobs.test_audit import Damage, Load, damage, told

MOVES = 5


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing leave its range."""
    monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)


def at(address: str) -> dict[str, str]:
    """Return the options that say which store it is."""
    return {"connect": address, "insecure": "true"}


def test_an_audit_of_a_sound_store_finds_no_difference_while_it_splits(
    spark: Any, served: str, db: postroom.Database
) -> None:
    fill(db)
    db.create_queue(
        "q", ack_wait=0.3, max_attempts=2, on_duplicate="replace", purge_after=0, max_concurrency=3,
        max_rate=1000.0,
    )  # fmt: skip
    for cut in (b"a/1", b"inbox/2", b"k"):
        db.split(cut)
    with Load(served) as load:
        for cut in (b"a/2", b"inbox/1"):
            before = load.done
            result = audit(spark, at(served))
            assert load.done > before
            assert told(result) == set()
            db.split(cut)
    compared = {each.counter: each.compared for each in result.findings}
    assert all(compared.values()), compared


def test_an_entry_that_is_in_two_ranges_is_no_difference(
    spark: Any, served: str, db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that receivers have taken stay in the outboxes."""

    async def never_drop(*_: Any) -> None:
        pass

    monkeypatch.setattr(SendingService, "_drop", never_drop)
    for cut in CUTS:
        db.split(cut)
    for _ in range(MOVES):
        db.run(move)
    while len(db.peek(b"z", 100)) < MOVES or not db.get(b"y"):
        pass
    assert told(audit(spark, at(served))) == set()


def test_sums_fit_while_an_update_is_carried_out_in_one_of_its_ranges_only(
    spark: Any, served: str, db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = SendingService._batch

    def not_to_the_right(self: SendingService, destination: Any) -> Any:
        return None if destination.recipient.start == b"a/b" else batch(self, destination)

    monkeypatch.setattr(SendingService, "_batch", not_to_the_right)
    db.split(b"a/b")
    with db.begin() as tx:
        tx.put(b"a", b"1")
        tx.enqueue_update(Accounting(b"a/b/c", {"n": 5}))
    while not db.accounting(b"a"):
        pass
    assert not db.accounting(b"a/b/c")
    assert told(audit(spark, at(served))) == set()


@pytest.fixture
def folder(tmp_path: Path, unsent: None) -> Path:
    """Return a store whose first range has messages for the last one."""
    with postroom.open(tmp_path / "shop") as db:
        db.create_queue("q", max_concurrency=7)
        for cut in CUTS:
            db.split(cut)
        for _ in range(MOVES):
            db.run(move)
        with db.begin() as tx:
            tx.put(b"u", b"")
            tx.enqueue_message(b"b", b"back")
    return tmp_path / "shop"


def sent(beneath: Damage, sender: int) -> list[tuple[bytes, bytes]]:
    """Return the messages that a range has for others."""
    return beneath.span(keys.outbox_prefix(sender, keys.DELIVERABLE, keys.OUTGOING))


def lose(folder: Path, sender: int = 1) -> None:
    """Let the sender drop a message that the receiver has not taken."""
    with damage(folder) as beneath:
        (*_, last) = sent(beneath, sender)
        beneath.put(last[0], None)
        beneath.change_counters(sender, outgoing_messages=-1, handed=1)


def double(folder: Path) -> str:
    """Let the receiver have a message that the sender will send again; return its id."""
    with damage(folder) as beneath:
        (first, *_) = sent(beneath, 1)
        id_ = first[0][-20:]
        beneath.put(keys.inbox_prefix(b"z") + id_, b"")
        beneath.put(keys.mail_key(b"z"), InboxIndexEntry(1, id_))
        beneath.change_counters(3, received=1, delivered=1)
        return id_.hex()


def lose_slots(folder: Path) -> None:
    """Let a queue lose slots."""
    with damage(folder) as beneath:
        beneath.change(slots_key(2, beneath.numbers["q"], "concurrency"), Slots, usable=-1)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lose, ("in_transit", "all ranges", b"", "", -1, 0)),
        (lose_slots, ("queue.slots", "queue 'q'", b"", "concurrency", 7, 6)),
    ],
)
def test_an_entry_or_a_slot_that_is_lost_or_doubled_between_ranges_is_found(
    spark: Any, folder: Path, harm: Callable[[Path], None], expected: tuple[Any, ...]
) -> None:
    harm(folder)
    assert told(audit(spark, {"path": str(folder)})) == {expected}


def test_a_message_that_two_ranges_have_though_the_marks_do_not_say_so_is_named(
    spark: Any, folder: Path
) -> None:
    doubled = double(folder)
    expected = {("in_transit.message", "", b"z", f"id {doubled}", 1, 2)}
    assert told(audit(spark, {"path": str(folder)})) == expected


@pytest.mark.parametrize("sender", [3, 1], ids=["other channels", "the same channel"])
def test_a_message_that_is_lost_does_not_make_up_for_one_that_is_doubled(
    sender: int, spark: Any, folder: Path
) -> None:
    lose(folder, sender)
    doubled = double(folder)
    assert told(audit(spark, {"path": str(folder)})) == {
        ("in_transit", "all ranges", b"", "", 0, 1),
        ("in_transit.message", "", b"z", f"id {doubled}", 1, 2),
    }
