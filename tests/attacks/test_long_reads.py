"""Reads that take long: what a turn takes is bounded, and an answer."""

from __future__ import annotations

import pytest

from postroom import limits
from postroom.messaging.requests import (
    ListInboxes,
    Peek,
)
from postroom.ranges.requests import (
    GetMany,
    Protect,
    ReverseScan,
    Scan,
    ScanChanges,
)
from tests.attacks.hostile import Attacker, Target, memory_below
from tests.client.stores import Store

MIB = 1024 * 1024


def test_get_many_of_a_million_keys_answers_as_many_as_a_turn_has_room_for(
    target: Target, attacker: Attacker
) -> None:
    values, *_ = attacker.result(GetMany([b"k" * 16] * 1_000_000))
    assert 0 < len(values) <= limits.TURN_STEPS_MAX + 1
    target.check_turns()
    assert target.store.db.get_many([b"k"] * 30_000) == [None] * 30_000
    target.check_turns()
    target.check_alive()


def test_get_many_of_large_values_answers_some_of_them(target: Target, attacker: Attacker) -> None:
    for number in range(20):
        target.store.db.put(b"%02d" % number, bytes(MIB))
    wanted = [b"%02d" % (number % 20) for number in range(2000)]
    with memory_below(40 * MIB):
        values, *_ = attacker.result(GetMany(wanted))
    assert 0 < len(values) <= 9
    target.check_alive()


@pytest.mark.parametrize("kind", [Scan, ReverseScan])
def test_scans_over_what_was_deleted_are_answered_page_by_page(
    target: Target, attacker: Attacker, kind: type[Scan | ReverseScan]
) -> None:
    target.fill(25_000)
    target.store.db.put(b"a", b"first")
    target.store.db.put(b"z", b"last")
    for first in (b"key/0000", b"key/0001", b"key/0002"):
        target.store.db.delete_range(first, first + b"~")
    start, end, found, pages = b"b" if kind is Scan else b"", b"y", [], 0
    end = b"y" if kind is ReverseScan else b"zz"
    while True:
        pairs, resume, *_ = attacker.result(kind(start, end, 0, 1 << 40, 1 << 62))
        found += pairs
        pages += 1
        if resume is None:
            break
        start, end = (resume, end) if kind is Scan else (start, resume)
    assert found == [[b"z", b"last"]] if kind is Scan else [[b"a", b"first"]]
    assert pages > 2
    target.check_turns()
    db = target.store.db
    assert next(iter(db.scan(reverse=kind is ReverseScan, limit=1)))[0] in (b"a", b"z")
    assert [key for key, _ in db.scan(reverse=kind is ReverseScan)] in ([b"a", b"z"], [b"z", b"a"])
    target.check_alive()


def test_inboxes_over_many_go_on_over_turns(target: Target, attacker: Attacker) -> None:
    count = 3 * limits.TURN_STEPS_MAX
    for first in range(0, count, 4000):
        with target.store.db.begin() as tx:
            for number in range(first, min(count, first + 4000)):
                tx.enqueue_message(b"%06d" % ((number * 7919) % count), b"")
    target.longest = 0
    listed = attacker.result(ListInboxes(b"", None, 5))
    assert [key for key, *_ in listed[:3]] == [b"000000", b"007919", b"015838"]
    name, message, _ = attacker.failure(ListInboxes(b"", None, 1 << 40))
    assert name == "Invalid"
    assert str(limits.INBOXES_LISTED_MAX) in message
    assert len(target.store.db.inboxes(b"000000", b"001000", limit=50_000)) == 1000
    target.check_turns()
    target.check_alive()


def test_inboxes_with_long_keys_are_answered_up_to_so_many_bytes(
    target: Target, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 of the longest keys were encoded twice in one turn, and fitted into no frame."""
    monkeypatch.setattr(limits, "INBOXES_LISTED_BYTES_MAX", 10_000)
    with target.store.db.begin() as tx:
        for number in range(8):
            tx.enqueue_message(b"%d" % number + b"x" * 1900, b"")
    name, message, _ = attacker.failure(ListInboxes(b"", None, 8))
    assert name == "Invalid"
    assert "more than 10000 bytes" in message
    assert len(attacker.result(ListInboxes(b"", None, 4))) == 4
    assert len(attacker.result(ListInboxes(b"4", None, 1 << 40))) == 4
    target.check_alive()


def test_watching_and_peeking_from_the_past_go_on_over_turns(
    target: Target, attacker: Attacker
) -> None:
    store = target.store
    at = int(store.db.now())
    target.fill(2 * limits.TURN_STEPS_MAX)
    for _ in range(3):
        with store.db.begin() as tx:
            for number in range(4000):
                tx.enqueue_message(b"inbox", b"%d" % number)
    then = int(store.db.now())
    for _ in range(6):
        with store.db.begin() as tx:
            assert len(tx.reap_queue(b"inbox", 2000)) == 2000
    target.longest = 0
    changes, until = attacker.result(ScanChanges(b"key/", b"key0", at, wait=False))
    assert len(changes) == 2 * limits.TURN_STEPS_MAX
    assert until >= changes[-1][0]
    assert changes == sorted(changes)
    attacker.result(Protect(then))
    messages, more, _ = attacker.result(Peek(b"inbox", 100, then))
    assert (len(messages), more) == (100, True)
    target.check_turns()
    assert len(store.db.peek(b"inbox", 20_000, at=then)) == 12_000
    target.check_alive()


def test_long_reads_of_a_store_that_rests_write_nothing() -> None:
    store = Store(rests_alone=True)
    for first in range(0, 3 * limits.TURN_STEPS_MAX, 2000):
        with store.db.begin() as tx:
            for number in range(first, first + 2000):
                tx.put(b"%06d" % number, b"v")
                tx.enqueue_message(b"%06d" % number, b"m")
    store.db.drain()
    store.restart()
    assert store.node.root.replica.rests
    keys = [key for key, _ in store.db.scan()]
    assert len(keys) >= 3 * limits.TURN_STEPS_MAX
    assert store.db.get_many(keys) == [b"v"] * len(keys)
    assert [each.key for each in store.db.inboxes(limit=3)] == keys[:3]
    assert store.node.root.replica.rests
    assert store.engine.writes == 0
    store.db.close()
