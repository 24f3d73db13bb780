"""A range of a node splits: its keys, and what goes with them, are the right half's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import Invalid, KeyTooLarge, SnapshotTooOld, Unavailable
from postroom.kv import keys
from postroom.messaging.handover.channels import Channel
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.inbox_reads import trial_of
from postroom.messaging.requests import Deliverable, DeliverDue, ListScheduled, Moved, ReapQueue
from postroom.protocol.requests import REQUESTS
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import LeasedWrites
from postroom.ranges.contract import Role
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    Lock,
    Protect,
    Put,
    ReleaseLocks,
    Unprotect,
)
from postroom.ranges.split.records import halved_key
from postroom.ranges.split.requests import AwaitSplit, CancelSplit, DivideSome, PrepareSplit, Split
from postroom.ranges.state import RangeState
from postroom.ranges.sweep import SWEEP_RECORD
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.splitting import (
    ask,
    counters,
    hosted,
    new_id,
    prepare,
    refuse,
    spans,
    split,
    upkeep,
)

KEYS = (b"a", b"m", b"n", b"z")


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    if made.node.failed is None:
        made.node.close()


def hold_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all splits from taking place."""

    def must_wait(*_: Any) -> bool:
        return True

    monkeypatch.setattr("postroom.messaging.halves.MessagingHalves.must_wait", must_wait)


# --- keys


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_each_key_is_in_the_range_that_contains_it(store: Store, ends: str) -> None:
    for key in KEYS:
        store.db.put(key, key)
    assert split(store, b"m").range_id == 2
    assert split(store, b"n").range_id == 3
    assert split(store, b"c").range_id == 4
    cut = [(1, b"", b"c"), (4, b"c", b"m"), (2, b"m", b"n"), (3, b"n", None)]
    assert spans(store) == cut
    for key in KEYS:
        assert store.db.get(key) == key
        store.db.put(key, b"new " + key)
    store.restart() if ends == "closed" else store.kill()
    assert spans(store) == cut
    assert [store.db.get(key) for key in KEYS] == [b"new " + key for key in KEYS]


def test_both_halves_have_a_higher_generation(store: Store) -> None:
    split(store, b"m")
    split(store, b"c")
    generations = {
        range_id: each.replica.bounds.descriptor.generation
        for range_id, each in store.node.replicas.hosted.items()
    }
    assert generations == {1: 3, 2: 2, 3: 3}


def test_a_thousand_splits_in_a_row_make_a_thousand_ranges() -> None:
    store = Store()
    for number in range(1000):
        split(store, b"k%03d" % number)
    assert len(store.node.replicas.hosted) == 1001
    store.db.put(b"k500", b"value")
    assert store.db.get(b"k500") == b"value"
    store.node.close()


def test_a_commit_after_the_split_sees_what_was_read_before_it(store: Store) -> None:
    store.db.put(b"n", b"1")
    tx = store.db.begin()
    assert tx.get(b"n") == b"1"
    split(store, b"m")
    tx.put(b"n", b"2")
    tx.commit()
    assert store.db.get(b"n") == b"2"


# --- bad input


@pytest.mark.parametrize("key", [b"", b"m"], ids=["own start", "start of a split range"])
def test_a_range_is_not_split_where_it_begins(store: Store, key: bytes) -> None:
    split(store, b"m")
    with pytest.raises(Invalid, match="begins at"):
        prepare(store, key)


def test_a_range_is_not_split_beyond_its_end(store: Store) -> None:
    split(store, b"m")
    call = Asked(PrepareSplit(b"z", new_id(store)))
    hosted(store, 1).replica.submit(call)
    store.driver.settle()
    assert isinstance(call.answers[0][1], WrongRange)


def test_a_range_does_not_begin_at_a_key_that_is_too_long(store: Store) -> None:
    with pytest.raises(KeyTooLarge):
        prepare(store, b"k" * 8193)


def test_an_id_is_used_once(store: Store) -> None:
    split(store, b"m")
    with pytest.raises(Invalid, match="there is a range 2"):
        ask(store, PrepareSplit(b"z", 2))
    with pytest.raises(Unavailable, match="range id 77"):
        ask(store, PrepareSplit(b"z", 77))
    assert new_id(store) == 3
    assert new_id(store) == 4


def test_a_request_that_is_repeated_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as held:
        hold_back(held)
        range_id = prepare(store, b"m")
        ask(store, PrepareSplit(b"m", range_id))
    store.advance(1.0)
    ask(store, PrepareSplit(b"m", range_id))
    assert spans(store) == [(1, b"", b"m"), (2, b"m", None)]


def test_only_administrators_split() -> None:
    wanted = {PrepareSplit, CancelSplit, AwaitSplit}
    assert not wanted & REQUESTS.allowed(Role.WRITE)
    assert wanted <= REQUESTS.allowed(Role.ADMIN)
    assert not {Split, DivideSome} & REQUESTS.allowed(Role.ADMIN)


# --- conditions of a split


def test_one_split_of_a_range_is_prepared_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as held:
        hold_back(held)
        prepare(store, b"m")
        with pytest.raises(Unavailable, match="is under way"):
            prepare(store, b"n")
    store.advance(1.0)
    split(store, b"n")
    assert [start for _, start, _ in spans(store)] == [b"", b"m", b"n"]


def test_a_prepared_split_can_be_cancelled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as held:
        hold_back(held)
        prepare(store, b"m")
        assert hosted(store, 1).replica.listing.info().splitting
        waits = Asked(AwaitSplit(b"m"))
        store.node.replicas.submit(waits)
        store.driver.settle()
        assert not waits.answers
        assert ask(store, CancelSplit(b"m", "it is not wanted"))
        assert not ask(store, CancelSplit(b"m"))
    ((_, error),) = waits.answers
    assert isinstance(error, Invalid)
    assert "it is not wanted" in str(error)
    store.advance(1.0)
    assert spans(store) == [(1, b"", None)]
    split(store, b"m")


def test_a_prepared_split_takes_place_after_a_restart(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as held:
        hold_back(held)
        prepare(store, b"m")
        store.restart()
    store.advance(1.0)
    store.db.put(b"z", b"1")
    assert spans(store) == [(1, b"", b"m"), (2, b"m", None)]


def test_a_split_waits_until_due_messages_have_arrived() -> None:
    store = Store()
    left = hosted(store, 1)
    left.replica.registry.commands[DeliverDue] = lambda *_: Moved(0, more=False, next_due=0)
    tx = store.db.begin()
    tx.enqueue_message(b"z", b"later", deliver_at=1.0)
    tx.commit()
    store.advance(2.0)
    prepare(store, b"m")
    assert not upkeep(store, left, DivideSome())
    with pytest.raises(Unavailable, match="under way"):
        upkeep(store, left, Split())
    assert len(store.node.replicas.hosted) == 1
    store.node.close()


def test_messages_that_are_due_later_keep_no_split_waiting(store: Store) -> None:
    tx = store.db.begin()
    tx.enqueue_message(b"z", b"later", deliver_at=100.0)
    tx.commit()
    right = split(store, b"m")
    assert counters(hosted(store, 1)).pending_messages == 1
    assert counters(right).pending_messages == 0


def test_a_split_waits_while_the_members_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.raft.group.RaftGroup.is_changing", True)
    with pytest.raises(Unavailable, match="are just changing"):
        prepare(store, b"m")


def test_a_range_does_not_split_while_a_member_cannot_read_the_entry(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older:
        is_heard = True
        entries_version = 1

    monkeypatch.setattr("postroom.raft.group.RaftGroup.progress", lambda _: {7: Older})
    with pytest.raises(Unavailable, match="node 7"):
        prepare(store, b"m")


def test_the_messages_of_a_queue_are_claimed_in_both_halves(store: Store) -> None:
    store.db.create_queue("orders")
    with store.db.begin() as tx:
        for id_ in ("a", "b", "y", "z"):
            tx.enqueue("orders", b"", id=id_)
    (held,) = store.db.queue("orders").claim(1)
    split(store, b"m")
    store.advance(1.0)
    claimed = [held]
    for _ in range(2):
        claimed += store.db.queue("orders").claim(10)
    assert sorted(str(each.id) for each in claimed) == ["a", "b", "y", "z"]
    assert store.db.queue("orders").acknowledge(claimed) == 4
    split(store, b"b")


def test_a_split_is_given_up_if_something_came_that_cannot_be_divided(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as held:
        hold_back(held)
        prepare(store, b"m")
        waits = Asked(AwaitSplit(b"m"))
        store.node.replicas.submit(waits)
        store.advance(1.0)
    monkeypatch.setattr("postroom.messaging.halves.MessagingHalves.check", refuse)
    store.advance(1.0)
    assert "cannot be divided" in str(waits.answers[0][1])
    assert spans(store) == [(1, b"", None)]


def test_the_entry_of_a_split_has_nothing_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = list[dict[bytes, bytes | None]]()
    stage = RangeState._stage

    def noted(state: RangeState, decided: LeasedWrites, staged: Any) -> None:
        entries.append(decided.writes)
        stage(state, decided, staged)

    monkeypatch.setattr(RangeState, "_stage", noted)
    with monkeypatch.context() as held:
        hold_back(held)
        range_id = prepare(store, b"m")
        store.advance(1.0)
    entries.clear()
    replica = hosted(store, 1).replica
    calls = [Asked(_put(store, b"z", number)) for number in range(5)]
    for call in calls[:3]:
        replica.submit(call)
    replica.submit(Asked(Split(), urgent=False))
    for call in calls[3:]:
        replica.submit(call)
    store.driver.settle()
    (split_,) = [each for each in entries if halved_key(1) in each]
    assert not any(key[:1] > keys.RANGE for key in split_)
    assert all(call.answers[0][1] is None for call in calls), "they came before the split"
    late = Asked(_put(store, b"z", 9))
    replica.submit(late)
    store.driver.settle()
    assert isinstance(late.answers[0][1], WrongRange)
    assert range_id in store.node.replicas.hosted


def _put(store: Store, key: bytes, number: int) -> CommitTransaction[Any]:
    began = store.node.clock.read()
    return CommitTransaction(
        b"a client" + number.to_bytes(8, "big"), began, 60.0, 0, key, [], [], [Put(key, b"value")]
    )


# --- messages and marks that go with their keys


def hold_up(store: Store, key: bytes, seconds: float) -> None:
    """Send two messages, the first of which is postponed and holds up the other one."""
    with store.db.begin() as tx:
        tx.enqueue_message(key, b"first")
        tx.enqueue_message(key, b"second")
    with store.db.begin() as tx:
        tx.postpone(tx.reap_queue(key, 1), seconds, "not now", hold=True)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_postponed_message_that_holds_up_its_inbox_goes_along(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    hold_up(store, b"a", 20.0)
    if when == "before":
        hold_up(store, b"n", 20.0)
        right = split(store, b"m")
    else:
        with monkeypatch.context() as held:
            hold_back(held)
            range_id = prepare(store, b"m")
            store.advance(1.0)
            hold_up(store, b"n", 20.0)
        store.advance(1.0)
        right = hosted(store, range_id)
    told = counters(hosted(store, 1)), counters(right)
    assert [(each.pending_messages, each.handed, each.received) for each in told] == [
        (1, 1, 0), (1, 0, 1),
    ]  # fmt: skip
    for key in (b"a", b"n"):
        with store.db.begin() as tx:
            assert not tx.reap_queue(key, 1), "the first message holds up the others"
    store.advance(25.0)
    for key in (b"a", b"n"):
        with store.db.begin() as tx:
            assert [each.value for each in tx.reap_queue(key, 2)] == [b"first", b"second"]
    told = counters(hosted(store, 1)), counters(right)
    assert [(each.pending_messages, each.delivered, each.reaped) for each in told] == [
        (0, 3, 2), (0, 1, 2),
    ]  # fmt: skip


def test_a_range_with_too_many_postponed_messages_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.messaging.halves.SPLIT_HELD_UP_MAX", 2)
    for key in (b"n", b"o", b"p"):
        hold_up(store, key, 20.0)
    prepare(store, b"m")
    store.advance(5.0)
    assert len(store.node.replicas.hosted) == 1
    assert "hold up inboxes" in _note(store)
    store.advance(30.0)
    assert len(store.node.replicas.hosted) == 2
    assert not _note(store)


def _note(store: Store) -> str:
    """Return what the status tells of the split of range 1."""
    (status,) = [each for each in hosted(store, 1).services.status() if each.name == "split"]
    return status.note


def entries_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[bytes, bytes | None]]]:
    """Return the entries that ranges apply from now on: range ids and writes."""
    found: list[tuple[int, dict[bytes, bytes | None]]] = []
    stage = RangeState._stage

    def noted(state: RangeState, decided: LeasedWrites, staged: Any) -> None:
        found.append((state._range_id, decided.writes))
        stage(state, decided, staged)

    monkeypatch.setattr(RangeState, "_stage", noted)
    return found


def check_own_keys(store: Store, entries: list[tuple[int, dict[bytes, bytes | None]]]) -> None:
    """Check that each range has written its own keys only."""
    assert entries
    for range_id, writes in entries:
        bounds = hosted(store, range_id).replica.bounds
        for key in writes:
            assert key.startswith(keys.range_prefix(range_id)) or bounds.contains_engine_key(key)


def test_an_attempt_that_is_lost_after_the_split_does_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"n", b"message")
    reap = ReapQueue(b"n", 1, 1000, b"client 1" + bytes(8), 60.0, attempts_max=3)
    assert ask(store, reap).messages
    split(store, b"m")
    entries = entries_of(monkeypatch)
    store.node.replicas.release_client(b"client 1")
    store.advance(1.0)
    again = ReapQueue(b"n", 1, 1000, b"client 2" + bytes(8), 60.0, attempts_max=3)
    ((_, stored),) = ask(store, again).messages
    assert trial_of(stored) is None
    store.db.put(b"a", b"value")
    check_own_keys(store, entries)


def test_a_message_that_is_cancelled_after_the_split_leaves_the_other_half_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"n", b"first")
        tx.enqueue_message(b"n", b"second")
    with store.db.begin() as tx:
        first, second = tx.reap_queue(b"n", 2)
        tx.postpone([first], 50.0, "not now", hold=True)
        tx.postpone([second], 50.0, "later")
    split(store, b"m")
    entries = entries_of(monkeypatch)
    listed = Asked(ListScheduled(b"", None, 10))
    hosted(store, 1).replica.submit(listed)
    (entry,) = listed.answers[0][0].entries
    assert entry.message.value == b"second"
    assert store.db.cancel([entry.id.hex()]) == 1
    check_own_keys(store, entries)


def test_a_batch_that_was_taken_before_the_split_is_not_taken_again(store: Store) -> None:
    channel = Channel(99, has_updates=False, lane=3)
    batch = tuple(
        (number.to_bytes(8, "big") + bytes(20), Deliverable(key, b"value", None, b"", b""))
        for number, key in enumerate(KEYS, 1)
    )
    left = hosted(store, 1)
    assert upkeep(store, left, HandOver(channel, b"", None, batch))
    right = split(store, b"m")
    for range_, messages in ((left, batch[:1]), (right, batch[1:])):
        bounds = range_.replica.bounds
        marks = upkeep(store, range_, HandOver(channel, bounds.start, bounds.end, messages))
        assert [mark for _, _, mark in marks] == [batch[-1][0]]
    assert (counters(left).received, counters(right).received) == (len(batch), 0)
    for key in KEYS:
        with store.db.begin() as tx:
            assert len(tx.reap_queue(key, 2)) == 1


# --- garbage, versions and locks


def test_a_right_half_removes_garbage_of_before_its_beginning() -> None:
    store = Store(gc_ttl_seconds=10.0)
    for key in KEYS:
        for number in range(5):
            store.db.put(key, b"%d" % number)
    at = store.db.now()
    store.db.put(b"o", b"gone")
    store.db.delete(b"o")
    with store.db.begin() as tx:
        tx.enqueue_message(b"n", b"message")
    with store.db.begin() as tx:
        tx.reap_queue(b"n", 1)
    right = split(store, b"m")
    data = keys.data_span(b"m", None)
    assert len(list(store.engine.iterate(*data))) > len(KEYS)
    store.advance(200.0)
    left = [raw for raw, _ in store.engine.iterate(*data)]
    assert left == [keys.head_key(key) for key in KEYS[1:]]
    assert not list(store.engine.iterate(*keys.transaction_span(b"m", None)))
    assert store.engine.get(keys.record_key(right.range_id, SWEEP_RECORD)) is None
    with pytest.raises(SnapshotTooOld):
        ask(store, Get(b"n", at))
    assert [store.db.get(key) for key in KEYS] == [b"4"] * len(KEYS)
    store.node.close()


def test_a_sweep_leaves_versions_that_were_overwritten_after_the_split() -> None:
    store = Store(gc_ttl_seconds=10.0)
    store.db.put(b"n", b"1")
    right = split(store, b"m")
    store.advance(60.0)
    store.db.put(b"n", b"2")
    at = store.db.now()
    store.db.put(b"n", b"3")
    store.advance(30.0)
    assert store.engine.get(keys.record_key(right.range_id, SWEEP_RECORD)) is None
    assert ask(store, Get(b"n", at)).value == b"2"
    store.node.close()


def test_a_right_half_that_rests_sweeps_once_another_range_is_written() -> None:
    store = Store(gc_ttl_seconds=10.0, rests_alone=True)
    store.db.put(b"n", b"1")
    store.db.put(b"n", b"2")
    right = split(store, b"m")
    store.restart(after_seconds=1.0)
    store.advance(300.0)
    record = keys.record_key(right.range_id, SWEEP_RECORD)
    assert store.engine.get(record) is not None, "a store that is only read writes nothing"
    store.db.put(b"a", b"1")
    store.advance(300.0)
    assert store.engine.get(record) is None
    left = [raw for raw, _ in store.engine.iterate(*keys.data_span(b"m", None))]
    assert left == [keys.head_key(b"n")]
    store.node.close()


def test_a_sweep_goes_on_in_steps_after_a_restart_and_in_both_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("postroom.ranges.sweep.VISITED_AT_ONCE", 3)
    store = Store(gc_ttl_seconds=10.0)
    for key in KEYS:
        for number in range(7):
            store.db.put(key, b"%d" % number)
    split(store, b"m")
    store.restart(after_seconds=1.0)
    store.db.put(b"n", b"last")
    split(store, b"n")
    store.advance(200.0)
    found = [raw for raw, _ in store.engine.iterate(*keys.data_span(b"m", None))]
    assert found == [keys.head_key(key) for key in KEYS[1:]]
    assert store.db.get(b"n") == b"last"
    store.node.close()


def test_versions_of_before_the_split_can_be_read_until_they_are_collected(store: Store) -> None:
    store.db.put(b"n", b"old")
    at = store.db.now()
    store.db.put(b"n", b"new")
    split(store, b"m")
    assert ask(store, Get(b"n", at)).value == b"old"


@pytest.mark.parametrize("what", ["protection", "position"])
def test_timestamps_that_the_root_protects_hold_in_all_ranges(what: str) -> None:
    store = Store(gc_ttl_seconds=10.0)
    store.db.put(b"n", b"old")
    at = store.db.now()
    store.db.put(b"n", b"new")
    split(store, b"m")
    if what == "protection":
        assert ask(store, Protect(at)) == at
    else:
        store.db.keep_position("reader", at)
    store.db.put(b"n", b"newer")
    store.advance(200.0)
    assert ask(store, Get(b"n", at)).value == b"old"
    if what == "protection":
        ask(store, Unprotect(at))
    else:
        assert store.db.forget_position("reader")
    store.advance(200.0)
    with pytest.raises(SnapshotTooOld):
        ask(store, Get(b"n", at))
    store.node.close()


def test_versions_that_were_collected_before_the_split_cannot_be_read_in_either_half() -> None:
    store = Store(gc_ttl_seconds=10.0)
    store.db.put(b"n", b"old")
    at = store.db.now()
    store.db.put(b"n", b"new")
    store.advance(200.0)
    split(store, b"m")
    for key in (b"a", b"n"):
        with pytest.raises(SnapshotTooOld):
            ask(store, Get(key, at))
    store.node.close()


def test_locks_of_before_the_split_keep_nobody_waiting(store: Store) -> None:
    id_ = bytes(8) + b"a locker"
    ask(store, Lock([b"a", b"n"], [], id_, 60.0))
    split(store, b"m")
    store.db.put(b"n", b"value")
    ask(store, ReleaseLocks(id_))
    store.db.put(b"a", b"value")
    assert store.node.sizes()["holders"] == 0


# --- those that wait


def test_all_that_wait_are_answered_while_their_range_splits(store: Store) -> None:
    names = [b"k%03d" % number for number in range(1000)]
    before = store.node.sizes()
    waiting = {}
    for number, name in enumerate(names):
        reap = ReapQueue(name, 1, 1000, b"a reaper" + number.to_bytes(8, "big"), 600.0, wait=True)
        waiting[name] = call = Asked(reap)
        store.node.replicas.submit(call)
    for cut in range(10):
        split(store, b"k%03d" % (cut * 100 + 50))
        for name, call in waiting.items():
            if call.answers and isinstance(call.answers[0][1], WrongRange):
                waiting[name] = again = Asked(call.request)
                store.node.replicas.submit(again)
    store.driver.settle()
    assert not any(call.answers for call in waiting.values())
    for name in names:
        with store.db.begin() as tx:
            tx.enqueue_message(name, b"message")
    for call in waiting.values():
        ((reaped, error),) = call.answers
        assert error is None
        assert len(reaped.messages) == 1
        ask(store, ReleaseLocks(call.request.transaction_id))
    store.advance(700.0)
    after = store.node.sizes()
    timers = after.pop("timers")
    assert after == dict.fromkeys(after, 0)
    assert timers <= 11 * (before["timers"] + 1), "those of the services of eleven ranges"
