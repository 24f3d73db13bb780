"""The applied record of a range: one record for index, term, last commit and counters."""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from postroom.kv import keys
from postroom.kv.clock import from_milliseconds
from postroom.kv.engine import WriteSet
from postroom.messaging.counters import Counters, read_counters
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges import lease as leases
from postroom.ranges.calls import LeasedWrites, encode
from postroom.ranges.requests import Committed, CommitTransaction, Put
from postroom.ranges.state import (
    APPLIED_RECORD,
    AppliedRecord,
    RangeState,
    decode_applied,
    read_applied,
)
from tests.messaging.one_range import EPOCH_MILLISECONDS, RANGE_ID, OneRange

BEGAN: Final = from_milliseconds(EPOCH_MILLISECONDS)
PLACE: Final = keys.record_key(RANGE_ID, APPLIED_RECORD)
TERM: Final = 7


def _commit(one_range: OneRange, *writes: Any) -> Committed:
    commit = CommitTransaction(os.urandom(16), BEGAN, 60.0, 0, b"k", [], [], list(writes))
    ((answer, error),) = one_range.ask(commit).answers
    assert error is None
    committed: Committed = answer
    return committed


def _records(one_range: OneRange) -> dict[bytes, bytes]:
    prefix = keys.record_key(RANGE_ID, "")
    return dict(one_range.engine.iterate(prefix, keys.after_prefix(prefix)))


def _apply(state: RangeState, command: LeasedWrites) -> AppliedRecord:
    staged: WriteSet = {}
    packed = msgspec.msgpack.encode(command)
    state.apply([(state.applied_index() + 1, TERM, packed, None)], staged)
    record = staged[PLACE]
    assert record is not None
    return decode_applied(record)


def test_a_commit_that_sends_changes_one_record_of_the_range() -> None:
    one_range = OneRange()
    before = _records(one_range)
    index = one_range.replica.state.applied_index()
    committed = _commit(one_range, Put(b"k", b"v"), EnqueueMessage(b"inbox", b"hello"))
    after = _records(one_range)
    assert {name for name in after if after[name] != before.get(name)} == {PLACE}
    record = read_applied(one_range.engine, RANGE_ID)
    assert (record.index, record.term) == (index + 1, 1)
    assert record.last_commit >= committed.timestamp
    assert read_counters(one_range.engine, RANGE_ID) == Counters(enqueued=1, delivered=1)


def test_a_commit_without_messages_keeps_the_counters() -> None:
    one_range = OneRange()
    _commit(one_range, EnqueueMessage(b"inbox", b"hello"))
    _commit(one_range, Put(b"k", b"v"))
    assert read_counters(one_range.engine, RANGE_ID) == Counters(enqueued=1, delivered=1)


def test_a_command_that_is_void_under_its_lease_changes_index_and_term_alone() -> None:
    one_range = OneRange()
    _commit(one_range, EnqueueMessage(b"inbox", b"hello"))
    before = read_applied(one_range.engine, RANGE_ID)
    sequence = one_range.replica.lease.sequence
    void = LeasedWrites(sequence - 1, {b"k": b"v"}, before.last_commit + 1, b"other")
    after = _apply(one_range.replica.state, void)
    assert after == msgspec.structs.replace(before, index=before.index + 1, term=TERM)
    good = LeasedWrites(sequence, {b"k": b"v"}, before.last_commit + 1, b"other")
    assert _apply(one_range.replica.state, good) == AppliedRecord(
        before.index + 2, TERM, before.last_commit + 1, b"other"
    )


def test_a_void_command_between_others_changes_nothing_but_the_place() -> None:
    one_range = OneRange()
    _commit(one_range, EnqueueMessage(b"inbox", b"hello"))
    state, sequence = one_range.replica.state, one_range.replica.lease.sequence
    before, staged = read_applied(one_range.engine, RANGE_ID), dict[bytes, bytes | None]()
    commands = (
        LeasedWrites(sequence, {b"a": b"1", b"b": b"1"}, before.last_commit + 1),
        LeasedWrites(sequence + 1, {b"a": b"2", b"c": b"2"}, before.last_commit + 2, b"void"),
        LeasedWrites(sequence, {b"b": b"3"}),
    )
    first = before.index + 1
    entries = [(first + at, TERM, encode(each), None) for at, each in enumerate(commands)]
    state.apply(entries, staged)
    record = decode_applied(staged.pop(PLACE) or b"")
    assert staged == {b"a": b"1", b"b": b"3"}
    assert record == AppliedRecord(first + 2, TERM, before.last_commit + 1, before.sums)


def test_a_lease_in_a_pass_counts_for_the_commands_after_it() -> None:
    one_range = OneRange()
    state, lease = one_range.replica.state, one_range.replica.lease
    key, staged = keys.record_key(RANGE_ID, leases.LEASE_RECORD), dict[bytes, bytes | None]()
    next_lease = leases.successor(lease, 2, lease.expiration, 9.0)
    commands = (
        LeasedWrites(lease.sequence, {key: leases.encode(next_lease)}),
        LeasedWrites(lease.sequence, {b"a": b"1"}),
        LeasedWrites(next_lease.sequence, {b"b": b"2"}),
    )
    first = state.applied_index() + 1
    state.apply(
        [(first + at, TERM, encode(each), None) for at, each in enumerate(commands)], staged
    )
    assert (b"a" in staged, staged[b"b"]) == (False, b"2")
    assert one_range.replica.lease == next_lease


def test_an_entry_of_the_groups_own_keeps_last_commit_and_counters() -> None:
    one_range = OneRange()
    _commit(one_range, EnqueueMessage(b"inbox", b"hello"))
    before, staged = read_applied(one_range.engine, RANGE_ID), dict[bytes, bytes | None]()
    one_range.replica.state.apply([(before.index + 1, TERM, None, None)], staged)
    after = decode_applied(staged[PLACE] or b"")
    assert after == msgspec.structs.replace(before, index=before.index + 1, term=TERM)


def test_a_state_machine_that_is_opened_again_goes_on_from_the_record() -> None:
    one_range = OneRange()
    _commit(one_range, EnqueueMessage(b"inbox", b"hello"))
    before, replica = read_applied(one_range.engine, RANGE_ID), one_range.replica
    again = RangeState(
        RANGE_ID,
        one_range.engine,
        replica.cache,
        replica.registry,
        replica.lease_holder,
        replica.serving,
    )
    assert (again.applied_index(), again.applied_term()) == (before.index, before.term)
    after = _apply(again, LeasedWrites(replica.lease.sequence, {b"k": b"v"}))
    assert after == msgspec.structs.replace(before, index=before.index + 1, term=TERM)


def test_the_record_is_read_past_the_cache_of_values() -> None:
    one_range = OneRange()
    cache = one_range.replica.cache
    _commit(one_range, Put(b"k", b"1"))
    before = read_applied(cache, RANGE_ID)
    _commit(one_range, Put(b"k", b"2"))
    assert read_applied(cache, RANGE_ID).index == before.index + 1
