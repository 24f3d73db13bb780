"""Ranges side by side in one engine: none of them touches what belongs to another one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom import limits
from postroom.errors import Invalid, StoreCorrupted
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.memory import MemoryEngine
from postroom.messaging import inbox_index
from postroom.messaging.bulk_requests import TABLES, RecordsPage, ScanRecords, unpack
from postroom.messaging.ingest.requests import (
    BeginLoad,
    BeginRestore,
    CheckImage,
    LoadRows,
    StageRows,
)
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.queries import ListQueueMessages, ReadQueueMessage
from postroom.messaging.queues.records import QueueLayout
from postroom.messaging.queues.requests import (
    EnqueueInQueue,
)
from postroom.messaging.requests import (
    EnqueueMessage,
    EnqueueUpdate,
    ExecuteDue,
    ListInboxes,
    ReadCounters,
    ReapMessages,
    ReapQueue,
)
from postroom.ranges import state as range_state
from postroom.ranges.bounds import WrongRange
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.partitions import ReadPartitions
from postroom.ranges.requests import (
    CollectGarbage,
    Delete,
    DeleteRange,
    Get,
    GetForUpdate,
    GetMany,
    Increment,
    Lock,
    Now,
    Put,
    ReverseScan,
    Scan,
    ScanChanges,
    Unprotect,
)
from tests.messaging.one_range import Asked
from tests.ranges.neighbours import (
    CUTS,
    LONGEST,
    ODD_KEYS,
    QUEUE,
    Neighbour,
    side_by_side,
)

side_by_side_at = pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: b"|".join(cuts)[:9].hex())


@pytest.fixture
def full(cuts: tuple[bytes, ...]) -> list[Neighbour]:
    """Return ranges that have something of each kind at each key."""
    ranges = side_by_side(*cuts)
    for one in ranges:
        one.fill()
    return ranges


def protected(one: Neighbour) -> int:
    """Return a timestamp that is protected as a whole, for one range."""
    at: int = one.result(Now())
    one.replica.protections.add_whole(at)
    return at


def whole(one: Neighbour, request: Any) -> Any:
    """Return the answer of a request at a timestamp that is protected as a whole."""
    at = protected(one)
    try:
        return one.result(msgspec.structs.replace(request, timestamp=at))
    finally:
        one.result(Unprotect(at))


def records(one: Neighbour, table: str) -> list[tuple[Any, ...]]:
    """Return all records of a table, a few bytes at a time."""
    found: list[tuple[Any, ...]] = []
    cursor: bytes | None = b""
    at = protected(one)
    while cursor is not None:
        request = ScanRecords(table, one.start, one.end, at, cursor=cursor, bytes_max=100)
        page: RecordsPage = one.result(request)
        columns = (unpack(TABLES[table][name], column) for name, column in page.columns.items())
        found += zip(*columns, strict=True)
        cursor = page.resume
    one.result(Unprotect(at))
    return found


def the_rest(ranges: list[Neighbour], one: Neighbour) -> dict[bytes, bytes]:
    """Return all that the engine has of the other ranges."""
    others = (each for each in ranges if each is not one)
    return dict(chain.from_iterable(one.watched.content(each.bounds).items() for each in others))


# --- reads ----------------------------------------------------------------------------------------


@side_by_side_at
def test_reads_of_a_range_find_its_own_keys_and_touch_no_others(full: list[Neighbour]) -> None:
    for one in full:
        names = one.keys_of()
        span = one.start, one.end
        for scan in (Scan, ReverseScan):
            page = one.result(scan(*span, 0, 1000, 1 << 20))
            assert sorted(page.pairs) == [(name, b"new") for name in names]
        changes = one.result(ScanChanges(*span, 1, wait=False)).changes
        assert {change.key.removesuffix(b"\x00deleted") for change in changes} == set(names)
        assert one.result(GetMany(names)).values == [b"new"] * len(names)
        assert [each.key for each in one.result(ListInboxes(*span, 100, by_key=True))] == names
        assert [part.start for part in one.result(ReadPartitions(*span, 1))] == [one.start]


@side_by_side_at
def test_the_order_of_inboxes_has_only_those_of_the_range(
    full: list[Neighbour], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_index, "_PAGE", 1)
    for one in full:
        listed = one.result(ListInboxes(one.start, one.end, 100))
        assert sorted(each.key for each in listed) == one.keys_of()
        assert one.replica.sizes()["inboxes in order"] == len(listed)


def test_inboxes_of_the_whole_range_come_from_the_order_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order has them all, so the index is not read through once more."""
    monkeypatch.setattr(inbox_index, "_PAGE", 1)
    _, one = side_by_side(b"a")
    one.fill()
    one.result(ListInboxes(one.start, one.end, 100))

    def look_through(*_: Any) -> Iterator[None]:
        yield pytest.fail("the index was read")

    monkeypatch.setattr(inbox_index, "_look_through", look_through)
    listed = one.result(ListInboxes(one.start, one.end, 100))
    assert [each.key for each in listed] == one.keys_of()


@side_by_side_at
def test_tables_of_records_have_those_of_the_range(full: list[Neighbour]) -> None:
    for one in full:
        names = one.keys_of()
        for table in ("data", "inbox", "inbox_index"):
            assert sorted({record[0] for record in records(one, table)}) == names
        beside = {record[1] for record in records(one, "beside")}
        assert beside == set(names)
        reaped = {record[0] for record in records(one, "reaped")}
        assert reaped == set(names)
        image = [record[0] for record in records(one, "image")]
        assert all(map(one.bounds.contains_engine_key, image))
        for table in ("outbox", "dead_letters", "counters", "places", "range_image", "accounting"):
            records(one, table)


@side_by_side_at
def test_an_image_is_checked_against_the_counters_of_its_range(full: list[Neighbour]) -> None:
    for one in full:
        counted = whole(one, CheckImage(0, one.start, one.end))
        assert counted.wrong == []
        assert counted.tables["data"] == len(one.keys_of())
        assert counted.tables["inbox_index"] >= len(one.keys_of())


@side_by_side_at
def test_the_past_of_a_queue_is_read_from_the_keys_of_its_range(full: list[Neighbour]) -> None:
    """The queues have the same number in each range, so that bodies look alike."""
    for one in full:
        listed = one.result(ListQueueMessages(QUEUE, timestamp=one.result(Now())))
        queued = [name for name in one.keys_of() if name and len(name) < 1000]
        assert [each.key for each in listed.messages] == queued


@side_by_side_at
def test_counters_are_those_of_the_range(full: list[Neighbour]) -> None:
    for one in full:
        counters = one.result(ReadCounters())
        assert counters.enqueued == 2 * len(one.keys_of())
        assert counters.conserved()


# --- requests about keys of others ----------------------------------------------------------------


def elsewhere(key: bytes) -> list[Any]:
    """Return reads about a key, and of the span from there to the key ``m``."""
    t, after = b"t" * 16, key + b"\x00"
    span = min(key, b"m"), max(after, b"m\x00")
    return [
        Get(key), GetMany([b"m", key]), GetForUpdate(key, 0, t, 1.0),
        Scan(*span, 0, 10, 100), Scan(key, None, 0, 10, 100), ReverseScan(*span, 0, 10, 100),
        Lock([b"m", key], [], t, 1.0), Lock([], [span], t, 1.0),
        ScanChanges(*span, 0, wait=False), ScanChanges(key, after, 0), ListInboxes(*span, 10),
        ReapQueue(key, 1, 100, t, 1.0, wait=True), ReadPartitions(*span, 1),
        ScanRecords("data", *span, 0), ReadQueueMessage(QUEUE, key, None),
    ]  # fmt: skip


@pytest.mark.parametrize("general_only", [False, True])
def test_requests_about_keys_of_another_range_are_refused(general_only: bool) -> None:
    ranges = side_by_side(b"m", b"n", is_general_only=general_only)
    for each in ranges:
        each.commit(Put(each.start, b"value"))
    middle = ranges[1]
    stored = middle.watched.content(middle.bounds)
    for key in (b"", b"l", b"n", LONGEST):
        for request in elsewhere(key):
            with pytest.raises(WrongRange) as refused:
                middle.result(request)
            assert refused.value.descriptors == (middle.bounds.descriptor,)
        for write in (
            Put(key, b"x"), Delete(key), Increment(key), DeleteRange(key, None),
            ReapMessages(key, []),
            EnqueueInQueue(QUEUE, b"m", "", key or b"\x00", b""),
        ):  # fmt: skip
            with pytest.raises(WrongRange):
                middle.result(middle.transaction(Put(b"m", b"x"), write))
        for fields in ({"anchor": key}, {"reads": [key]}, {"spans": [(key, None)]}):
            with pytest.raises(WrongRange):
                middle.result(middle.transaction(Put(b"m", b"x"), **fields))
    assert middle.watched.content(middle.bounds) == stored
    assert middle.value(b"m") == b"value"


def test_a_thread_reads_no_key_of_another_range_beside_the_evaluation() -> None:
    first, second = side_by_side(b"m")
    for each in (first, second):
        each.commit(Put(each.start, b"value"))
    assert first.replica.try_get(b"").value == b"value"  # type: ignore[union-attr]
    assert first.replica.try_get(b"m") is None
    assert second.replica.try_get(b"") is None


def test_a_refused_commit_leaves_the_others_of_its_turn_alone() -> None:
    first, second = side_by_side(b"m")
    first.group.holds = True
    asked = [
        first.ask(first.transaction(Put(b"%d" % number, b"x"), *more))
        for number, more in enumerate([(), (Put(b"z", b"x"),), ()])
    ]
    first.group.holds = False
    first.settle()
    errors = [type(each.answers[0][1]) for each in asked]
    assert errors == [type(None), WrongRange, type(None)]
    assert (first.value(b"0"), first.value(b"2"), second.value(b"z")) == (b"x", b"x", None)


def test_rows_are_staged_in_the_range_of_their_query_alone() -> None:
    first, second = side_by_side(b"m")
    packed = msgspec.msgpack.encode([Put(b"a", b"1"), Put(b"z", b"1")])
    request = StageRows(b"a query", 1, b"j" * 24, b"", b"a" * 16, 0, packed)
    first.commit(request)
    with pytest.raises(WrongRange):
        second.commit(request)


def test_a_load_of_a_span_finds_out_whether_the_span_is_empty_in_its_range() -> None:
    first, second = side_by_side(b"m")
    second.fill((b"m",))
    first.commit(BeginLoad(b"load", b"r" * 16, b"", None, b""))
    with pytest.raises(Invalid, match="not empty"):
        second.commit(BeginLoad(b"load", b"r" * 16, b"", None, b"m"))
    with pytest.raises(WrongRange):
        first.commit(BeginLoad(b"another", b"r" * 16, b"l", None, b"m"))


def test_a_range_loads_the_rows_before_its_end() -> None:
    first, second = side_by_side(b"m")
    run, keys_ = b"r" * 16, [b"k", b"l", b"m", b"n"]
    for each, at in ((first, b""), (second, b"m")):
        each.commit(BeginLoad(b"load", run, b"", None, at))
    assert first.commit(LoadRows(b"load", run, keys_, [b"1"] * 4)).answers == [2]
    assert second.commit(LoadRows(b"load", run, keys_[2:], [b"1"] * 2)).answers == [2]
    assert (first.value(b"l"), second.value(b"m")) == (b"1", b"1")


# --- queues ---------------------------------------------------------------------------------------


@side_by_side_at
def test_a_dropped_queue_is_emptied_at_the_keys_of_its_range(full: list[Neighbour]) -> None:
    """A record of its index cannot be read, so that all keys are looked through."""
    for one in full:
        if not one.keys_of():
            continue
        damaged = QueueLayout(one.replica.range_id, 1).ready + b"\xff"
        one.watched.write({damaged: b"no record"}, sync=True)
        one.drop_queue()
        rest = the_rest(full, one)
        for _ in range(20):
            one.result(AdvanceQueues(100))
            one.pass_time(1.0)
        body = keys.QUEUE_BODY + keys.u32(1)
        left = [raw for raw in one.watched.content(one.bounds) if keys.END_OF_KEY + body in raw]
        assert left == []
        assert the_rest(full, one) == rest
        assert one.messaging.queues._dropped == {}


def test_a_made_up_id_is_new_if_its_range_has_no_greater_one() -> None:
    """A greater id of the same client lies in the next range."""
    family = b"an id of 16 byte"
    first, second = side_by_side(family + b"5")
    for each in (first, second):
        each.fill(())
    second.commit(EnqueueInQueue(QUEUE, family + b"7", "", family + b"7", b""))
    first.watched.outside.clear()
    for number in range(3):
        id_ = family + b"%d" % number
        first.commit(EnqueueInQueue(QUEUE, id_, "", id_, b"", is_unique=True))
    made_up = first.messaging.queues.made_up
    assert made_up._greatest == {family: family + b"2"}


# --- deferred updates, and garbage ----------------------------------------------------------------


def test_a_deferred_deletion_of_keys_that_have_come_into_several_ranges_is_on_its_way() -> None:
    """It is handed over in parts, the part of this range as well."""
    [one] = side_by_side()
    for name in (b"a", b"b", b"m", b"z"):
        one.commit(Put(name, b"value"))
    due = one.clock.reading() + from_seconds(10)
    one.commit(EnqueueUpdate(DeleteRange(b"b", None), due))
    one.becomes(b"", b"m")
    one.pass_time(20.0)
    assert one.result(ExecuteDue(100)).messages == 1
    one.becomes(b"", None)
    page = one.result(Scan(b"", None, 0, 10, 1000))
    assert [key for key, _ in page.pairs] == [b"a", b"b", b"m", b"z"]
    assert one.result(ReadCounters()).outgoing == 1


@side_by_side_at
def test_garbage_is_collected_in_its_range(full: list[Neighbour]) -> None:
    for one in full:
        rest = the_rest(full, one)
        one.pass_time(1000.0)
        collected = one.result(CollectGarbage(one.result(Now()), 10_000))
        assert (collected.keys > 0) == bool(one.keys_of())
        assert the_rest(full, one) == rest
        raws = one.watched.content(one.bounds)
        assert not any(raw[:1] == keys.TRANSACTION for raw in raws)


def test_garbage_that_lies_in_another_range_by_now_is_left_to_it() -> None:
    [one] = side_by_side()
    for name in (b"a", b"z"):
        one.commit(Put(name, b"old"))
        one.commit(Put(name, b"new"))
    one.becomes(b"", b"m")
    one.pass_time(1000.0)
    one.result(CollectGarbage(one.result(Now()), 10_000))
    left = [raw for raw, _ in one.watched.iterate(keys.DATA, keys.DATA_END)]
    older = [raw for raw in left if raw[-9:-8] == keys.HISTORY]
    assert [keys.user_key(raw) for raw in older] == [b"z"]


# --- snapshots ------------------------------------------------------------------------------------


def install(engine: MemoryEngine, range_id: int, chunks: list[bytes]) -> None:
    for piece in range_state.install(engine, range_id, chunks):
        engine.write(piece, sync=False)


def stored_descriptor(descriptor: RangeDescriptor) -> dict[bytes, bytes | None]:
    return {descriptor_key(descriptor.range_id): encode_descriptor(descriptor)}


def snapshot_of(one: Neighbour) -> list[bytes]:
    """Return the chunks of a snapshot, which touches nothing but the range."""
    with one.watched.only(one.bounds):
        return list(one.replica.state.open_snapshot().chunks)


@side_by_side_at
def test_a_snapshot_of_a_range_contains_nothing_else(full: list[Neighbour]) -> None:
    for one in full:
        chunks = snapshot_of(one)
        assert all(one.replica.state.is_chunk(chunk) for chunk in chunks)
        pairs = [pair for chunk in chunks for pair in msgspec.msgpack.decode(chunk)]
        assert dict(pairs) == one.watched.content(one.bounds)


@side_by_side_at
def test_a_snapshot_is_put_in_place_beside_other_ranges(full: list[Neighbour]) -> None:
    others = side_by_side(*[each.start for each in full[1:]])
    for one, target in zip(full, others, strict=True):
        target.fill((target.start, target.start + b"\x00 only here"))
        before = the_rest(others, target)
        with target.watched.only(target.bounds):
            pieces = target.replica.state.install_snapshot(iter(snapshot_of(one)))
            for piece in pieces:
                target.watched.write(piece, sync=False)
            target.replica.state.snapshot_installed()
        assert target.watched.content(target.bounds) == one.watched.content(one.bounds)
        assert the_rest(others, target) == before


def test_a_replica_that_holds_nothing_takes_the_place_that_its_snapshot_tells() -> None:
    first, second = side_by_side(b"m")
    for each in (first, second):
        each.fill()
    target = side_by_side(b"m")[0]
    target.fill()
    before = target.watched.content(target.bounds)
    target.watched.write({keys.head_key(b"x"): b"a leftover"}, sync=True)
    install(target.watched, 2, snapshot_of(second))
    assert target.watched.content(second.bounds) == second.watched.content(second.bounds)
    assert target.watched.content(target.bounds) == before


def test_a_snapshot_clears_the_old_bounds_and_the_new_ones() -> None:
    """The range was split, and has got another part since."""
    engine = MemoryEngine()
    engine.write(stored_descriptor(RangeDescriptor(2, b"b", b"f", 2)), sync=True)
    names = (b"a", b"b", b"c", b"e", b"g", b"x")
    engine.write({keys.head_key(name): b"old" for name in names}, sync=True)
    source = MemoryEngine()
    source.write(stored_descriptor(RangeDescriptor(2, b"d", b"h", 4)), sync=True)
    source.write({keys.head_key(b"f"): b"new"}, sync=True)
    install(engine, 2, list(range_state.open_snapshot(source, 2).chunks))
    left = {keys.user_key(raw): value for raw, value in engine.iterate(keys.DATA, keys.DATA_END)}
    assert left == {b"a": b"old", b"f": b"new", b"x": b"old"}


def test_a_snapshot_with_keys_outside_of_its_bounds_is_not_put_in_place() -> None:
    engine = MemoryEngine()
    (key, record), *_ = stored_descriptor(RangeDescriptor(2, b"d", b"h", 4)).items()
    chunk = msgspec.msgpack.encode([(key, record), (keys.head_key(b"x"), b"theirs")])
    with pytest.raises(StoreCorrupted, match="does not contain"):
        install(engine, 2, [chunk])
    assert engine.get(keys.head_key(b"x")) is None


# --- restores -------------------------------------------------------------------------------------

RUN = b"r" * 16


def test_a_range_beside_others_refuses_to_restore_an_image() -> None:
    for one in side_by_side(b"a", b"m"):
        with pytest.raises(Invalid, match="several ranges; nothing was changed: restore"):
            one.result(BeginRestore(RUN, b"image", one.clock.reading()))


# --- other bounds ---------------------------------------------------------------------------------


def test_an_applied_descriptor_changes_the_bounds_of_its_replica() -> None:
    [one] = side_by_side()
    for name in (b"a", b"z"):
        one.commit(Put(name, b"value"))
    one.becomes(b"", b"m")
    assert one.bounds.descriptor == RangeDescriptor(1, b"", b"m", 2)
    assert one.value(b"a") == b"value"
    with pytest.raises(WrongRange):
        one.value(b"z")
    [part] = one.result(ReadPartitions(b"", b"m", 1))
    assert (part.range_id, part.generation) == (1, 2)


def test_a_range_that_gets_keys_back_reads_what_another_one_has_written() -> None:
    """The old value is in the cache of the range."""
    [one] = side_by_side()
    one.commit(Put(b"z", b"old"))
    assert one.value(b"z") == b"old"
    one.becomes(b"", b"m")
    head = keys.head_key(b"z")
    stored = one.watched.get(head)
    assert stored is not None
    one.watched.write({head: stored[:9] + b"new"}, sync=True)
    one.becomes(b"", None)
    assert one.value(b"z") == b"new"


def test_calls_that_wait_for_keys_are_told_when_those_go_to_another_range() -> None:
    [one] = side_by_side()
    one.result(Lock([b"z"], [], one.transaction_id(), 60.0))
    calls = {
        name: [
            one.ask(ReapQueue(name, 1, 100, one.transaction_id(), 60.0, wait=True)),
            one.ask(ReapQueue(name, 1, 100, one.transaction_id(), 60.0, wait=True)),
            one.ask(ScanChanges(name, name + b"\x00", one.result(Now()))),
        ]
        for name in (b"a", b"y")
    }
    waits = [
        one.ask(GetForUpdate(b"z", 0, one.transaction_id(), 60.0)),
        one.ask(one.transaction(Put(b"z", b"x"))),
    ]
    assert not any(call.answers for call in (*calls[b"a"], *calls[b"y"], *waits))
    one.becomes(b"", b"m")
    for call in (*calls[b"y"], *waits):
        [(_, error)] = call.answers
        assert isinstance(error, WrongRange)
    assert not any(call.answers for call in calls[b"a"])
    one.commit(EnqueueMessage(b"a", b"message"), Put(b"a", b"value"))
    assert [len(call.answers) for call in calls[b"a"]] == [1, 0, 1]


def test_calls_in_the_queue_find_out_that_their_keys_have_gone() -> None:
    [one] = side_by_side()
    one.group.holds = True
    first = one.ask(one.transaction(Put(b"a", b"1")))
    behind = [one.ask(one.transaction(Put(name, b"2"))) for name in (b"b", b"z")]
    read = one.ask(Get(b"z"))
    blocked = one.ask(Get(b"a"))
    one.group.holds = False
    one.bounds.take(RangeDescriptor(1, b"", b"m", 2))
    one.settle()
    assert [type(call.answers[0][1]) for call in (first, *behind)] == [
        type(None), type(None), WrongRange,
    ]  # fmt: skip
    assert read.answers[0][1] is None
    assert blocked.answers[0][0].value == b"1"


@pytest.mark.parametrize("read", [ScanChanges(b"", None, 1, wait=False), CheckImage()])
def test_a_long_read_ends_when_some_of_its_keys_go_to_another_range(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 4)
    [one] = side_by_side()
    for number in range(20):
        one.commit(Put(b"%02d" % number, b"value"))
    asked = Asked(read)
    one.replica.submit(asked)
    assert list(one.replica.reads.long) == [asked]
    one.becomes(b"", b"10")
    [(_, error)] = asked.answers
    assert isinstance(error, WrongRange)


# --- any keys, any cuts ---------------------------------------------------------------------------

names_of_keys = st.sampled_from(ODD_KEYS) | st.binary(max_size=3) | st.just(LONGEST)


@settings(max_examples=25)
@given(
    st.sets(names_of_keys, min_size=1, max_size=6),
    st.sets(names_of_keys, min_size=1, max_size=3).map(lambda cuts: cuts - {b""}),
)
def test_ranges_cut_anywhere_have_all_keys_together_and_none_twice(
    names: set[bytes], cuts: set[bytes]
) -> None:
    ranges = side_by_side(*sorted(cuts))
    for one in ranges:
        one.fill(tuple(names))
    found: list[bytes] = []
    for one in ranges:
        page = one.result(Scan(one.start, one.end, 0, 1000, 1 << 20))
        inboxes = one.result(ListInboxes(one.start, one.end, 100, by_key=True))
        assert [key for key, _ in page.pairs] == [each.key for each in inboxes]
        assert whole(one, CheckImage(0, one.start, one.end)).wrong == []
        pairs = [pair for chunk in snapshot_of(one) for pair in msgspec.msgpack.decode(chunk)]
        assert dict(pairs) == one.watched.content(one.bounds)
        found += [key for key, _ in page.pairs]
    assert found == sorted(names)
