"""Writes that take long: what a turn takes is bounded, and nobody else is locked out."""

from __future__ import annotations

from itertools import pairwise
from random import Random  # noqa: TID251 (seeded)
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import Transaction, errors, limits
from postroom.messaging.inbox import Inboxes
from postroom.messaging.outbox import Outbox
from postroom.messaging.requests import (
    EnqueueMessage,
    EnqueueUpdate,
    ReapMessages,
    ReapQueue,
)
from postroom.ranges import calls, garbage
from postroom.ranges.calls import LeasedWrites
from postroom.ranges.evaluation import LONG_SHARE
from postroom.ranges.requests import (
    DeleteRange,
    Get,
    Put,
    Scan,
)
from postroom.ranges.transactions import one_range
from tests.attacks.hostile import Attacker, Target
from tests.sim import checkers

MIB = 1024 * 1024


def test_delete_range_takes_time_in_proportion_to_its_keys() -> None:
    taken = []
    for count in (4000, 16_000):
        target = Target()
        target.fill(count)
        before = target._steps()
        assert target.store.db.delete_range(b"", None) == count
        taken.append(target._steps() - before)
        target.check_turns()
        target.check_alive()
        target.store.db.close()
    assert taken[1] < 4.5 * taken[0]
    assert taken[1] < 5 * 16_000


def test_a_put_beside_a_deletion_waits_for_what_a_turn_has_room_for(
    target: Target, attacker: Attacker
) -> None:
    target.fill(20_000)
    polite = Attacker(target, b"polite", "ipv4:10.0.0.9:1")
    position: bytes | None = b""
    began = slowest = 0
    while position is not None:
        part = attacker.ask(attacker.commit(DeleteRange(position, None, began)))
        asked, turns = polite.ask(polite.commit(Put(b"a", b""))), 0
        while not polite.has(asked):
            target.turn()
            turns += 1
            polite.read()
        slowest = max(slowest, turns)
        target.until(lambda part=part: attacker.read() >= 0 and attacker.has(part))  # type: ignore[misc]
        ((_, position, began),) = attacker.answers[part][1]
    assert slowest <= 1 + LONG_SHARE // 2
    assert [key for key, _ in target.store.db.scan()] == [b"a"]
    target.check_alive()


def delete_all(tx: Transaction) -> None:
    tx.delete_range(b"", None)
    tx.commit()


def test_a_deletion_of_too_much_is_refused_in_bounded_turns_and_goes_on_when_it_is_deferred(
    target: Target,
) -> None:
    count = 30_000
    target.fill(count, prefix=b"k" * 250)
    turns = target.turns
    tx = target.store.db.begin()
    with pytest.raises(errors.TransactionTooLarge, match=r"enqueue_update\(DeleteRange"):
        delete_all(tx)
    assert target.turns - turns > 1, "it was evaluated over several turns"
    assert len(list(target.store.db.scan())) == count
    with target.store.db.begin() as tx:
        tx.enqueue_update(DeleteRange(b"", None))
    target.store.db.drain()
    assert list(target.store.db.scan()) == []
    target.check_turns()
    counters = target.store.counters()
    assert (counters.executed, counters.pending, counters.dead) == (1, 0, 0)
    target.check_alive()


def test_a_large_proposal_is_listed_and_encoded_over_turns(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest turn of a deletion of 150,000 keys was the last one, with 0.3 s."""
    count, part = 3000, 100
    target.fill(count)
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", part)
    monkeypatch.setattr(limits, "GARBAGE_LIST_KEYS_MAX", part)
    done = [0]

    def counted(value: object) -> bytes:
        writes = value[1] if isinstance(value, LeasedWrites) else value
        done[0] += len(writes) if isinstance(writes, dict | list) else 0
        return msgspec.msgpack.encode(value)

    monkeypatch.setattr(calls, "encode", counted)
    monkeypatch.setattr(garbage, "_encode", counted)
    most, total, prepare = 0, 0, target.store.node.prepare

    def looked() -> object:
        nonlocal most, total
        done[0] = 0
        staged = prepare()
        most, total = max(most, done[0]), total + done[0]
        return staged

    monkeypatch.setattr(target.store.node, "prepare", looked)
    reader, seen = Attacker(target, b"reader"), 0
    before = int(target.store.db.now())
    attacker = Attacker(target, b"attacker")
    number = attacker.ask(attacker.commit(DeleteRange(b"", None)))
    while not attacker.has(number):
        target.turn()
        attacker.read()
        reader.ask(Get(b"key/00000001", before))
        seen += reader.read()
    assert number in attacker.answers
    assert total > 2 * count, "all of it was listed, and encoded, in parts"
    assert most <= part + 2, "no turn did more than its part"
    assert seen > 4 * count // part, "others were read for between"
    assert list(target.store.db.scan()) == []
    assert len(list(target.store.db.scan(at=before))) == count
    target.check_turns()
    target.check_alive()


PARCELS = {
    "messages": lambda number: EnqueueMessage(b"%06d" % (number % 700), b"v", None, 0),
    "messages for later": lambda number: EnqueueMessage(b"%06d" % number, b"v", None, 1 << 63),
    "updates": lambda number: EnqueueUpdate(Put(b"%06d" % number, b"v")),
}


@pytest.mark.parametrize("kind", PARCELS)
def test_the_messages_of_a_large_transaction_are_stored_over_turns(
    target: Target, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Turns stay short for many messages, and for many deferred updates.

    The storing turn of 150,000 messages in one piece took 0.2 s; of deferred updates 0.35 s.
    """
    count, share = 5000, 200
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", share)
    monkeypatch.setattr(limits, "DELIVERED_AT_ONCE_MAX", 1000)
    monkeypatch.setattr(limits, "EXECUTED_AT_ONCE_MAX", 100)
    done, most, total = [0], 0, 0
    store, deliver, prepare = Outbox.store, Inboxes.deliver, target.store.node.prepare

    def stored(outbox: Outbox, *rest: Any) -> None:
        done[0] += 1
        store(outbox, *rest)

    def delivered(inboxes: Inboxes, ctx: Any, arrivals: Any) -> int:
        done[0] += sum(map(len, arrivals.values()))
        return deliver(inboxes, ctx, arrivals)

    def looked() -> object:
        nonlocal most, total
        done[0] = 0
        staged = prepare()
        most, total = max(most, done[0]), total + done[0]
        return staged

    monkeypatch.setattr(Outbox, "store", stored)
    monkeypatch.setattr(Inboxes, "deliver", delivered)
    monkeypatch.setattr(target.store.node, "prepare", looked)
    attacker, reader, seen = Attacker(target, b"attacker"), Attacker(target, b"reader"), 0
    number = attacker.ask(attacker.commit(*map(PARCELS[kind], range(count))))
    while not attacker.has(number):
        target.turn()
        attacker.read()
        reader.ask(Get(b"000001"))
        seen += reader.read()
    assert number in attacker.answers
    assert total >= count - 100, "all were taken up, or carried out"
    assert most <= share, "no turn did more than its share"
    assert seen > 2 * count // share, "others were read for between"
    target.check_turns()
    counters = target.store.counters()
    assert counters.enqueued == counters.delivered + counters.executed + counters.pending == count
    if kind != "messages for later":
        target.store.db.drain()
        counters = target.store.counters()
        assert (counters.pending, counters.delivered + counters.executed) == (0, count)
    target.check_alive()


def test_a_lead_that_is_lost_while_messages_are_taken_up_leaves_none_of_them(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 20)
    replica, attacker = target.store.node.root.replica, Attacker(target, b"attacker")
    number = attacker.ask(attacker.commit(*map(PARCELS["messages"], range(500))))
    while (batch := replica.evaluator.batch) is None or batch.completing is None:
        target.turn()
    for _ in range(5):
        target.turn()
    assert not attacker.has(number)
    replica.stop_serving()
    assert attacker.read() >= 0
    assert attacker.failures[number][0] == "NotLeaseholder"
    target.settle()
    counters = target.store.counters()
    assert (counters.enqueued, counters.delivered, counters.pending) == (0, 0, 0)
    attacker.result(attacker.commit(*map(PARCELS["messages"], range(500))))
    assert target.store.counters().delivered == 500
    target.check_alive()


def test_each_step_of_a_deferred_deletion_conserves_and_snapshots_see_one_moment(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 7)
    target.fill(50)
    store = target.store
    before = store.db.now()
    with store.db.snapshot() as snapshot:
        states: list[int] = []

        def look(_: object) -> None:
            content = checkers.check(store.engine.inner.disk.content)  # type: ignore[attr-defined]
            states.append(content.counters.pending)

        store.engine.before_write = look
        with store.db.begin() as tx:
            tx.enqueue_update(DeleteRange(b"key/", b"key0"))
            tx.enqueue_update(Put(b"key/00000049", b"after"))
        store.db.put(b"key/00000048", b"meanwhile")
        store.db.drain()
        assert len(states) > 7
        assert max(states) == 2
        assert len(list(snapshot.scan(b"", None))) == 50
        assert len(list(store.db.scan(at=before))) == 50
    left = dict(store.db.scan())
    assert left[b"key/00000049"] == b"after", "what was deferred after it is done after it"
    assert left.keys() <= {b"key/00000049", b"key/00000048"}
    target.check_alive()


def test_a_write_during_a_deferred_deletion_stays(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 5)
    target.fill(50)
    store = target.store
    attacker = Attacker(target, b"attacker")
    attacker.ask(attacker.commit(EnqueueUpdate(DeleteRange(b"key/", b"key0"))))
    target.turn()
    number = attacker.ask(attacker.commit(Put(b"key/00000040", b"meanwhile")))
    target.until(lambda: attacker.read() >= 0 and attacker.has(number))
    assert store.counters().pending == 1, "it is not done yet"
    store.restart()
    store.db.drain()
    assert dict(store.db.scan()) == {b"key/00000040": b"meanwhile"}
    assert store.counters().executed == 1


@pytest.mark.parametrize("are_messages", [False, True], ids=["keys", "messages"])
def test_a_step_of_a_deferred_deletion_looks_at_little_that_it_does_not_delete(
    target: Target, monkeypatch: pytest.MonkeyPatch, are_messages: bool
) -> None:
    monkeypatch.setattr(limits, "DELETION_VISITS_MAX", 7)
    store = target.store
    if are_messages:
        with store.db.begin() as tx:
            for number in range(100):
                tx.enqueue_message(b"key/%04d" % number, b"message")
    else:
        target.fill(50)
        store.db.delete_range(b"key/", b"key0")
    pending: list[int] = []

    def look(_: object) -> None:
        content = checkers.check(store.engine.inner.disk.content)  # type: ignore[attr-defined]
        pending.append(content.counters.pending)

    store.engine.before_write = look
    with store.db.begin() as tx:
        tx.enqueue_update(DeleteRange(b"key/", b"key0"))
    store.db.drain()
    assert pending.count(1) >= 50 // 7 - 1, "each step is an entry of its own"
    target.check_alive()


def test_a_commit_with_many_spans_and_reads_leaves_room_for_others(
    target: Target, attacker: Attacker
) -> None:
    target.fill(2000)
    at = int(target.store.db.now())
    target.store.db.put(b"elsewhere", b"v")
    spans = [(b"key/%08d" % n, b"key/%08d\x00" % n) for n in range(0, 200_000, 2)]
    reads = [b"key/%08d" % (n % 2000) for n in range(100_000)]
    number = attacker.ask(attacker.commit(Put(b"k", b"v"), at=at, spans=spans, reads=reads))
    other, between = Attacker(target, b"other"), 0
    while not attacker.has(number):
        target.turn()
        attacker.read()
        if not attacker.has(number):
            other.ask(Get(b"key/00000001"))
            other.read()
            between += 1
    assert number in attacker.answers
    assert between > 5
    assert len(other.answers) >= between - 1, "reads go on meanwhile"
    target.check_turns()
    target.check_alive()


def test_the_spans_of_a_commit_are_sorted_over_turns(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200,000 spans took 60 ms of one turn, before the first of them was looked at."""
    count, share = 3000, 100
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", share)
    at = int(target.store.db.now())
    target.store.db.put(b"elsewhere", b"v")
    done, most, prepare = [0], 0, target.store.node.prepare

    def start(span: tuple[bytes, bytes | None]) -> bytes:
        done[0] += 1
        return span[0]

    def looked() -> object:
        nonlocal most
        done[0] = 0
        staged = prepare()
        most = max(most, done[0])
        return staged

    monkeypatch.setattr(one_range, "_START", start)
    monkeypatch.setattr(target.store.node, "prepare", looked)
    spans = [(b"%04d" % n, b"%04d" % (n + 2)) for n in range(count)]  # all of them are one
    Random(1).shuffle(spans)
    attacker = Attacker(target, b"attacker")
    attacker.result(attacker.commit(Put(b"k", b"v"), at=at, spans=spans))
    assert 0 < most <= 10 * share
    target.store.db.put(b"4000", b"no span has it")
    attacker.result(attacker.commit(Put(b"l", b"v"), at=at, spans=spans))
    target.store.db.put(b"1234", b"changed")
    late = attacker.commit(Put(b"m", b"v"), at=at, spans=spans)
    name, message, _ = attacker.failure(late)
    assert (name, "1234" in message) == ("TransactionConflict", True)
    target.check_alive()


@given(
    st.lists(st.tuples(st.integers(0, 20), st.one_of(st.none(), st.integers(0, 20)))),
    st.integers(1, 9),
)
def test_merged_spans_are_the_same_keys_in_order(
    numbers: list[tuple[int, int | None]], steps: int
) -> None:
    spans = [(bytes([a]), None if b is None else bytes([max(a, b)])) for a, b in numbers]
    ctx = cast("Any", SimpleNamespace(steps=0, is_used_up=lambda: False))
    with patch.object(limits, "TURN_STEPS_MAX", steps):
        merged = [span for span in one_range._merged(ctx, spans) if span is not None]

    def covered(spans: list[tuple[bytes, bytes | None]]) -> set[int]:
        return {
            n for n in range(30) for a, b in spans if a <= bytes([n]) and (not b or bytes([n]) < b)
        }

    assert covered(merged) == covered(spans)
    for (_, end), (start, _) in pairwise(merged):
        assert end is not None
        assert end < start


def test_a_read_beside_a_long_commit_sees_the_state_before_it(
    target: Target, attacker: Attacker
) -> None:
    count = 3 * limits.TURN_STEPS_MAX
    writes = [Put(b"long/%06d" % number, b"new") for number in range(count)]
    number = attacker.ask(attacker.commit(*writes))
    target.until(lambda: not target.sessions.large_frames)
    other = Attacker(target, b"other")
    target.turn()
    assert not attacker.has(number)
    _, timestamp, _ = other.result(Get(b"long/000000"))
    pairs, *_ = other.result(Scan(b"long/", None, timestamp, 10, MIB))
    assert pairs == []
    now = target.store.node.clock.now()
    late = other.ask(Get(b"long/000000", now))
    target.until(lambda: attacker.read() >= 0 and attacker.has(number))
    other.read()
    committed, _ = attacker.answers[number]
    assert timestamp < committed < now
    assert other.answers[late] == [b"new", now, False], "it has waited for what it must see"
    assert other.result(Get(b"long/000000", timestamp))[0] is None, "and the past is as it was"
    target.check_turns()
    target.check_alive()


def test_a_transaction_that_takes_more_steps_than_any_may_is_refused(
    target: Target, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.fill(20_000)
    at = int(target.store.db.now())
    target.store.db.put(b"elsewhere", b"v")
    monkeypatch.setattr(limits, "TRANSACTION_STEPS_MAX", 15_000)
    request = attacker.commit(Put(b"k", b"v"), at=at, spans=[(b"key/", None)])
    name, message, _ = attacker.failure(request)
    assert name == "TransactionTooLarge"
    assert "15000 steps" in message
    target.check_turns()
    target.check_alive()


def test_a_transaction_that_reaps_much_is_evaluated_over_turns(
    target: Target, attacker: Attacker
) -> None:
    count = 3 * limits.TURN_STEPS_MAX
    for first in range(0, count, 8000):
        with target.store.db.begin() as tx:
            for _ in range(min(8000, count - first)):
                tx.enqueue_message(b"inbox", b"")
    target.longest = 0
    taken: list[bytes] = []
    while True:
        id_ = attacker.transaction_id(1)
        messages, more, _ = attacker.result(ReapQueue(b"inbox", 1 << 40, 1 << 62, id_, 60.0))
        taken += [id_ for id_, _ in messages]
        if not more:
            break
    assert len(taken) == count
    attacker.result(attacker.commit(ReapMessages(b"inbox", taken)))
    assert target.store.counters().reaped == count
    target.check_turns()
    target.check_alive()
