"""An image of several ranges has what is in transit once, without what receivers have taken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroom import limits
from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.messaging.handover import marks as pieces
from postroom.messaging.handover.channels import lane_of
from postroom.messaging.handover.marks import MarkedSpan
from postroom.messaging.handover.transit import StoreMarks, Transit
from postroom.messaging.image_entries import COUNTERS_NAME
from postroom.messaging.queues.crossing import (
    EndPointer,
    GrantSlots,
    ReturnSlots,
    TakeSlots,
    decode,
)
from postroom.messaging.requests import Counters, Deliverable, Executable
from postroom.ranges.requests import Accounting, DeleteRange, Increment

SENDER = 7
TAKEN = [(b"m", b"t")]
"""The keys whose range has taken everything."""
Found = list[tuple[bytes, Any]]


def position(number: int) -> bytes:
    """Return the position of an entry of the only transaction."""
    return keys.u64(5) + keys.u64(5) + keys.u64(SENDER) + keys.u32(number)


def in_transit(entries: Found, taken: list[tuple[bytes, bytes]]) -> tuple[Found, Counters]:
    """Return what is left of outgoing entries, and the counters then."""
    known = StoreMarks()
    for start, end in taken:
        stored = pieces.encode([MarkedSpan(start, end, position(99))])
        lanes = [(keys.DELIVERABLE, lane) for lane in range(8)] + [(keys.EXECUTABLE, 0)]
        known.add(
            (keys.RANGE + keys.marks_key(1, SENDER, kind, lane)[9:], stored) for kind, lane in lanes
        )
    every = []
    for number, (kind, entry) in enumerate(entries):
        name = keys.RANGE + kind + keys.OUTGOING + position(number)
        every.append((name, msgspec.msgpack.encode(entry)))
    updates = sum(kind == keys.EXECUTABLE for kind, _ in entries)
    counters = Counters(
        enqueued=len(every), outgoing_messages=len(every) - updates, outgoing_updates=updates,
        outgoing_bytes=sum(len(name) + 8 + len(stored) for name, stored in every),
    )  # fmt: skip
    every.append((COUNTERS_NAME, msgspec.msgpack.encode(counters)))
    names, stored = Transit(SENDER, known).of(tuple(zip(*every, strict=True)))
    assert list(names) == sorted(set(names))
    left = dict(zip(names, stored, strict=True))
    after = msgspec.msgpack.decode(left.pop(COUNTERS_NAME) or b"", type=Counters)
    assert after.outgoing == len(left)
    assert after.outgoing_bytes == sum(len(name) + 8 + len(left[name] or b"") for name in left)
    return [(name, left[name]) for name in left], after


def message(key: bytes) -> tuple[bytes, Deliverable]:
    return keys.DELIVERABLE, Deliverable(key, b"", {}, bytes(16), b"")


def update(request: Any) -> tuple[bytes, Executable]:
    return keys.EXECUTABLE, Executable(request, bytes(16), b"")


def requests(left: Found) -> list[Any]:
    return [msgspec.msgpack.decode(stored, type=Executable).request for _, stored in left]


def test_a_message_that_its_receiver_has_taken_is_left_out() -> None:
    left, after = in_transit([message(b"a"), message(b"p"), message(b"z")], TAKEN)
    found = [msgspec.msgpack.decode(stored, type=Deliverable).key for _, stored in left]
    assert found == [b"a", b"z"]
    assert after.handed == 1


@pytest.mark.parametrize(
    ("taken", "left", "handed"),
    [
        ([], [(b"c", None)], 0),
        (TAKEN, [(b"c", b"m"), (b"t", None)], 0),
        ([(b"a", b"m")], [(b"m", None)], 1),
        ([(b"", b"d"), *TAKEN], [(b"d", b"m"), (b"t", None)], 1),
        ([(b"", None)], [], 1),
    ],
    ids=["nothing", "middle", "first", "two", "all"],
)
def test_the_parts_of_an_update_that_are_left_stay_in_its_place(
    taken: Any, left: list[tuple[bytes, bytes | None]], handed: int
) -> None:
    """Those who took its first part count it as received; each other part is one more update."""
    entries = [update(DeleteRange(b"c", None)), update(Increment(b"z", 1))]
    found, after = in_transit(entries, taken)
    deletions = [each for each in requests(found) if isinstance(each, DeleteRange)]
    assert [(each.start, each.end) for each in deletions] == left
    others = [each for each in requests(found) if isinstance(each, Increment)]
    assert requests(found) == [*deletions, *others], "they keep their order"
    assert after.handed == handed + (len(others) == 0)
    assert after.conserved()


def test_sums_are_added_only_to_prefixes_that_are_left() -> None:
    entries = [update(Accounting(b"a/p/x", {"n": 1}))]
    found, after = in_transit(entries, [(b"a/p", b"a/p\x00")])
    assert len(found) == 2
    assert after.conserved()


def test_lanes_of_messages_are_told_apart() -> None:
    known = StoreMarks()
    stored = pieces.encode([MarkedSpan(b"", None, position(99))])
    name = keys.RANGE + keys.marks_key(1, SENDER, keys.DELIVERABLE, lane_of(b"a"))[9:]
    known.add([(name, stored)])
    other = next(key for key in map(bytes, zip(range(256))) if lane_of(key) != lane_of(b"a"))
    entries = [
        (keys.RANGE + keys.DELIVERABLE + keys.OUTGOING + position(number), each)
        for number, each in enumerate(
            msgspec.msgpack.encode(message(key)[1]) for key in (b"a", other)
        )
    ]
    names, _ = Transit(SENDER, known).of(tuple(zip(*entries, strict=True)))
    assert list(names) == [entries[1][0]]


def test_slots_of_queues_are_left_out_since_one_range_owns_all() -> None:
    changes = (
        GrantSlots("q", 1, "rate", 5, 2), ReturnSlots("q", 1, "rate", 2),
        TakeSlots("q", 1, "concurrency", 1), EndPointer("q", 1, b"a", "", b"1"),
    )  # fmt: skip
    every = [
        (
            keys.DELIVERABLE,
            Deliverable(b"a", msgspec.msgpack.encode(each), None, bytes(16), b"", is_of_queue=True),
        )
        for each in changes
    ]
    left, after = in_transit(every, [])
    (found,) = (msgspec.msgpack.decode(stored, type=Deliverable) for _, stored in left)
    assert decode(found.value) == changes[-1]
    assert (after.enqueued, after.handed) == (4, 3)


def test_an_update_with_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    every_other = [(b"d%d" % number, b"d%d\xff" % number) for number in range(4)]
    found, _ = in_transit(
        [update(DeleteRange(b"c", b"e")), update(Increment(b"z", 1))], every_other
    )
    assert len(found) == 6
    monkeypatch.setattr(limits, "TRANSIT_PARTS_MAX", 4)
    with pytest.raises(Unavailable, match=r"more than 4 parts .* nothing was read: try again"):
        in_transit([update(DeleteRange(b"c", b"e"))], every_other)


def test_marks_that_need_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSIT_BYTES_MAX", 100_000)
    known, added = StoreMarks(), 0
    name = keys.RANGE + keys.marks_key(1, SENDER, keys.DELIVERABLE, 0)[9:]

    def add() -> None:
        nonlocal added
        while added < 10_000:
            start = keys.u32(added)
            known.add([(name, pieces.encode([MarkedSpan(start, start + b"a", position(added))]))])
            added += 1

    with pytest.raises(Invalid, match="nothing was read: stop all nodes, and copy"):
        add()
    assert 100 < added < 400
