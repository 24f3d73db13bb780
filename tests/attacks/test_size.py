"""Requests that are small and come to much, or are large: what memory they take is bounded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import postroom
from postroom import errors, limits
from postroom.kv import keys
from postroom.kv.leveldb import LevelDBEngine
from postroom.messaging.counters import read_counters
from postroom.messaging.requests import (
    Counters,
    Deliverable,
    EnqueueMessage,
    EnqueueUpdate,
    Executable,
    ReapMessages,
    ReplayDeadLetters,
)
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import (
    Accounting,
    Increment,
)
from postroom.ranges.state import APPLIED_RECORD, encode_applied, read_applied
from postroom.server.cluster.sessions import Sessions
from tests.attacks.hostile import Attacker, Target, memory_below
from tests.client.stores import Store

MIB = 1024 * 1024


MANY_PREFIXES = Accounting(b"/".join([b"a"] * 4096), {"m" * 200: 1})
HUGE_ACCOUNTING = Accounting(b"/".join([b"a"] * 4096), {f"metric {n}": 1 for n in range(20_000)})
STORED_ACCOUNTING = Accounting(
    HUGE_ACCOUNTING.key, {f"metric {n}": 1 for n in range(limits.METRICS_PER_PREFIX_MAX + 1)}
)


# --- poison


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (MANY_PREFIXES, limits.PREFIXES_MAX),
        (HUGE_ACCOUNTING, limits.PREFIXES_MAX),
        (Accounting(b"k", {f"{n}": 1 for n in range(65)}), limits.METRICS_MAX),
        (Accounting(b"k", {"m" * 257: 1}), limits.METRIC_BYTES_MAX),
    ],
)
@pytest.mark.parametrize("due", [0, 1 << 62])
def test_an_accounting_beyond_its_limits_is_refused_with_their_names(
    target: Target, attacker: Attacker, request_: Accounting, limit: int, due: int
) -> None:
    with memory_below(32 * MIB):
        for write in (EnqueueUpdate(request_, due), request_):
            name, message, _ = attacker.failure(attacker.commit(write))
            assert name == "ValueTooLarge"
            # Metrics of that number are not even decoded.
            assert f"limit is {limit}" in message or f"limit is {limits.METRICS_MAX}" in message
    with (
        pytest.raises(errors.ValueTooLarge, match=f"limit is {limit}"),
        target.store.db.begin() as tx,
    ):
        tx.enqueue_update(request_)
    target.check_alive()
    assert target.store.counters() == Counters()


def _store_directly(target: Target, kind: bytes, entry: object, pending: str) -> None:
    """Store an entry in an outbox that requests with limits cannot store."""
    engine, place = target.store.engine, keys.record_key(ROOT_ID, APPLIED_RECORD)
    now = keys.u64(target.store.node.clock.now())
    prefix = keys.outbox_prefix(ROOT_ID, kind, keys.WAITING)
    applied, counters = read_applied(engine, ROOT_ID), read_counters(engine, ROOT_ID)
    changed = {"enqueued": counters.enqueued + 1, pending: getattr(counters, pending) + 1}
    counters = msgspec.structs.replace(counters, **changed)
    engine.write(
        {
            prefix + now + now + keys.u64(ROOT_ID) + keys.u32(1): msgspec.msgpack.encode(entry),
            place: encode_applied(
                msgspec.structs.replace(applied, sums=msgspec.msgpack.encode(counters))
            ),
        },
        sync=True,
    )


def test_a_stored_update_beyond_the_limits_is_buried_and_what_is_behind_it_is_done() -> None:
    target = Target()
    entry = Executable(STORED_ACCOUNTING, b"t" * 16, b"source")
    _store_directly(target, keys.EXECUTABLE, entry, "pending_updates")
    target.store.restart()
    target = _again(target)
    with target.store.db.begin() as tx:
        tx.enqueue_update(Increment(b"behind"))
    target.store.db.drain()
    (letter,) = target.store.db.dead_letters()
    assert letter.reason.startswith("ValueTooLarge")
    assert letter.request == STORED_ACCOUNTING
    assert postroom.integer(target.store.db.get(b"behind")) == 1
    target.check_alive()
    target.store.db.close()


def test_a_message_that_fits_into_no_command_is_buried_and_what_is_behind_it_is_delivered() -> None:
    target = Target()
    headers = {"large": "h" * (32 * MIB)}
    entry = Deliverable(b"inbox", b"payload", headers, b"t" * 16, b"source")
    _store_directly(target, keys.DELIVERABLE, entry, "pending_messages")
    target.store.restart()
    target = _again(target)
    with target.store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"behind")
    target.store.db.drain()
    (letter,) = target.store.db.dead_letters()
    assert letter.message == b"payload"
    assert "TransactionTooLarge" in letter.reason
    assert "headers" in letter.reason
    assert [message.value for message in target.store.db.peek(b"inbox")] == [b"behind"]
    target.check_alive()
    target.store.db.close()


def _again(target: Target) -> Target:
    """Return the store after it was opened again."""
    again = object.__new__(Target)
    again.__dict__ |= target.__dict__
    again.sessions = Sessions(target.store.node)
    return again


def test_headers_beyond_their_limits_are_refused(target: Target, attacker: Attacker) -> None:
    for due in (0, 1 << 62):
        large = EnqueueMessage(b"k", b"", {"h": "x" * (31 * MIB)}, due)
        name, message, _ = attacker.failure(attacker.commit(large))
        assert name == "ValueTooLarge"
        assert str(limits.HEADERS_BYTES_MAX) in message
    with pytest.raises(errors.ValueTooLarge, match="65536"), target.store.db.begin() as tx:
        tx.enqueue_message(b"k", b"", headers={"h": "x" * limits.HEADERS_BYTES_MAX})
    target.check_alive()


@pytest.mark.parametrize("depth", [17, 100, 400, 900])
def test_nested_headers_are_refused_and_others_can_be_reaped(
    target: Target, attacker: Attacker, depth: int
) -> None:
    nested: object = 1
    for _ in range(depth):
        nested = [nested]
    attacker.ask(attacker.commit(EnqueueMessage(b"k", b"nested", {"h": nested})))
    target.settle()
    attacker.read()
    assert not attacker.answers
    other = Attacker(target, b"other")
    deep: object = 1
    for _ in range(limits.HEADERS_DEPTH_MAX - 1):
        deep = [deep]
    other.result(other.commit(EnqueueMessage(b"k", b"flat", {"h": deep})))
    with target.store.db.begin() as tx:
        (message,) = tx.reap_queue(b"k")
        assert message.value == b"flat"
    target.check_alive()


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_values_nested_too_deep_are_refused_when_they_are_sent(target: Target, codec: str) -> None:
    db = target.store.with_codec(codec)
    nested: object = 1
    for _ in range(limits.DEPTH_MAX):
        nested = [nested]
    with db.begin() as tx:
        tx.enqueue_message(b"k", nested)
    deeper = nested
    for more in (300, 600):
        for _ in range(more):
            deeper = {"k": deeper} if codec == "json" else [deeper]
        with pytest.raises((errors.ValueTooLarge, TypeError)), db.begin() as tx:
            tx.enqueue_message(b"k", deeper)
        with pytest.raises((errors.ValueTooLarge, TypeError)):
            db.put(b"k", deeper)
    with pytest.raises(errors.ValueTooLarge, match=str(limits.DEPTH_MAX)):
        db.put(b"k", [nested])
    with db.begin() as tx:
        assert [message.value for message in tx.reap_queue(b"k")] == [nested]
    target.check_alive()


# --- expansion


def test_the_sums_of_accountings_are_bounded_before_memory_is_spent(
    target: Target, attacker: Attacker
) -> None:
    """Each within its limits; together they are a million sums."""
    wide = {f"{n:03}": 1 for n in range(limits.METRICS_MAX)}
    deferred = [
        EnqueueUpdate(Accounting(b"/".join([b"%d" % n] * limits.PREFIXES_MAX), wide))
        for n in range(500)
    ]
    number = attacker.ask(attacker.commit(*deferred))
    with memory_below(64 * MIB):
        target.until(lambda: attacker.read() >= 0 and attacker.has(number))
        target.store.db.drain()
    assert target.store.counters().executed == 500
    assert target.store.db.accounting(b"499")["000"] == 1
    target.check_turns()
    target.check_alive()


def test_a_prefix_has_only_so_many_metrics(target: Target) -> None:
    for first in range(0, limits.METRICS_PER_PREFIX_MAX, limits.METRICS_MAX):
        names = {f"metric {first + n}": 1 for n in range(limits.METRICS_MAX)}
        with target.store.db.begin() as tx:
            tx.enqueue_update(Accounting(b"k", names))
    with target.store.db.begin() as tx:
        tx.enqueue_update(Accounting(b"k", {"one more": 1}))
        tx.enqueue_update(Accounting(b"k", {"metric 0": 1}))
    target.store.db.drain()
    (letter,) = target.store.db.dead_letters()
    assert str(limits.METRICS_PER_PREFIX_MAX) in letter.reason
    assert target.store.db.accounting(b"k")["metric 0"] == 2
    target.check_alive()


def test_deletions_of_large_values_keep_no_more_history_than_a_command_holds(
    target: Target, attacker: Attacker
) -> None:
    """Deleted values move to history: a small request would be a large write."""
    for number in range(64):
        target.store.db.put(b"big/%02d" % number, bytes(MIB))
    deletions = [postroom.Delete(b"big/%02d" % number) for number in range(64)]
    with memory_below(80 * MIB):
        gets = target.store.engine.gets
        assert attacker.failure(attacker.commit(*deletions))[0] == "TransactionTooLarge"
        assert target.store.engine.gets - gets < 80, "it stops where the limit is"
        attacker.result(attacker.commit(*(EnqueueUpdate(each) for each in deletions)))
        target.store.db.drain()
    assert target.store.db.get_many([b"big/%02d" % number for number in range(64)]) == [None] * 64
    target.check_alive()


def test_large_values_do_not_stay_in_memory_once_they_are_written(tmp_path: Path) -> None:
    """A key that is not there is remembered as such, until it is written: not with its value."""
    folder = tmp_path / "store"
    store = Store(lambda: LevelDBEngine.open(folder))
    with memory_below(24 * MIB):
        for number in range(64):
            store.db.put(b"%d" % number, bytes(MIB))
    store.db.close()


def test_replaying_and_reaping_by_name_count_what_they_move(
    target: Target, attacker: Attacker
) -> None:
    for _ in range(3):
        for number in range(15):
            with target.store.db.begin() as tx:
                tx.enqueue_message(b"k", bytes([number]) * (MIB - 100))
    ids = [bytes.fromhex(message.id) for message in target.store.db.peek(b"k")]
    assert len(ids) == 45
    with memory_below(100 * MIB):
        assert (
            attacker.failure(attacker.commit(ReapMessages(b"k", ids)))[0] == "TransactionTooLarge"
        )
    unknown = [b"%028d" % number for number in range(100_000)]
    assert attacker.result(attacker.commit(ReplayDeadLetters(unknown)))[1] == [0]
    target.check_turns()
    target.check_alive()
