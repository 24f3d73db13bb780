"""The trail of a range: with it, an image becomes that of each later timestamp."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import postroom
from postroom import limits
from postroom.client.trail import end_trail, keep_trail, read_trail
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging import trail
from postroom.messaging.trail import entry_name, parted, span_of, value_in
from postroom.messaging.trail_requests import TrailState
from postroom.ranges.split.requests import NewRangeId, PrepareSplit
from tests.client.images import Workload, read
from tests.messaging.queues.division import held_back

Image = dict[bytes, bytes]
NAMES = st.binary(max_size=4) | st.lists(st.sampled_from([b"\x00", b"\x01", b"\xff"])).map(b"".join)


def state_of(db: postroom.Database) -> TrailState:
    """Return the state of the trail of a store."""
    return db.wait(read_trail(db.core.sender))


def kept(db: postroom.Database, until: int = 0) -> TrailState:
    """Keep the trail of a store, and forget a part of it; return its state."""
    return db.wait(keep_trail(db.core.sender, until))


def ended(db: postroom.Database) -> TrailState:
    """End the trail of a store, and return its state."""
    db.wait(end_trail(db.core.sender))
    return state_of(db)


def entries(
    db: postroom.Database, end: bytes | None = None
) -> list[tuple[bytes, int, bytes | None]]:
    """Return the entries of the trail of a store, those of keys up to an end."""
    with db.hold(whole=True) as at:
        return [
            (*parted(each.name), value_in(each.stored))
            for table in ("range_trail", "trail")
            for page in db.bulk.records(table, b"", end, at=at)
            for each in page
        ]


def at_timestamp(base: Image, trail: list[tuple[bytes, int, bytes | None]], at: int) -> Image:
    """Return an image with all that the trail has up to a timestamp."""
    found: dict[bytes, bytes | None] = {**base}
    found |= {name: value for name, when, value in trail if when <= at}
    return {name: value for name, value in found.items() if value is not None}


def busy() -> tuple[postroom.Database, Workload]:
    """Return a store with a trail, and what goes on using it."""
    db = postroom.open(":memory:")
    work = Workload(db, 11, delays=(None, 0.02, 3600.0))
    for _ in range(40):
        work.step()
    kept(db)
    return db, work


@pytest.mark.parametrize("seed", range(4))
def test_an_image_with_the_trail_is_the_image_of_each_later_timestamp(seed: int) -> None:
    with postroom.open(":memory:") as db:
        work = Workload(db, seed, delays=(None, 0.02, 3600.0))
        for _ in range(40):
            work.step()
        state = kept(db)
        images = [read(db)]
        for _ in range(40):
            for _ in range(3):
                work.step()
            if seed % 2:
                db.delete_range(b"b", b"c")
            images.append(read(db))
        trail = entries(db)
    assert 0 < state.since < images[0][0]
    assert trail == sorted(trail, key=lambda each: each[:2])
    base = dict(images[0][1])
    for at, image in images:
        assert at_timestamp(base, trail, at) == dict(image)
    assert dict(images[-1][1]) != base


async def prepare(db: postroom.Database, key: bytes) -> None:
    """Prepare a split."""
    right_id = await db.core.sender.send(NewRangeId())
    await db.core.sender.send(PrepareSplit(key, right_id))


def test_a_trail_tells_nothing_of_queues_that_are_divided() -> None:
    with postroom.open(":memory:") as db, held_back():
        work = Workload(db, 1, delays=(None, 0.02, 3600.0))
        for _ in range(40):
            work.step()
        kept(db)
        base = dict(read(db)[1])
        db.wait(prepare(db, b"m"))
        for _ in range(40):
            work.step()
        at, image = read(db)
        assert at_timestamp(base, entries(db), at) == dict(image)
        assert any(name[1:2] == keys.QUEUES for name, _, _ in entries(db))


def test_a_trail_is_kept_only_when_it_is_asked_for() -> None:
    with postroom.open(":memory:") as db:
        db.put(b"a", b"1")
        assert state_of(db) == TrailState()
        assert entries(db) == []
        since = kept(db).since
        db.put(b"a", b"2")
        assert [name for name, _, _ in entries(db)] == [keys.head_key(b"a")]
        assert state_of(db).since == since
        assert ended(db) == TrailState()
        db.put(b"a", b"3")
        assert entries(db) == []


def test_a_trail_is_forgotten_up_to_a_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRAIL_LOOKED_AT_ONCE_MAX", 7)
    db, work = busy()
    with db:
        for _ in range(30):
            work.step()
        base_at, base = read(db)
        for _ in range(30):
            work.step()
        assert kept(db, base_at).since == base_at
        trail = entries(db)
        assert trail
        assert all(when > base_at for _, when, _ in trail)
        at, image = read(db)
        assert at_timestamp(dict(base), entries(db), at) == dict(image)


def test_a_trail_goes_on_after_the_store_is_opened_again(tmp_path: Any) -> None:
    with postroom.open(tmp_path / "store") as db:
        state = kept(db)
        db.put(b"a", b"1")
    with postroom.open(tmp_path / "store") as db:
        db.put(b"a", b"2")
        assert state_of(db) == state
        values = [value for name, _, value in entries(db) if name == keys.head_key(b"a")]
        assert [value and value[-1:] for value in values] == [b"1", b"2"]


def test_a_trail_that_has_ended_does_not_go_on_when_the_store_is_opened_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRAIL_WRITES_MAX", 20)
    with postroom.open(tmp_path / "store") as db:
        kept(db)
        with db.begin() as tx:
            for number in range(21):
                tx.put(b"%d" % number, b"1")
        state = state_of(db)
        assert state.ended
    with postroom.open(tmp_path / "store") as db:
        db.put(b"a", b"1")
        assert state_of(db) == state
        assert entries(db) == []


def test_a_trail_ends_at_its_limit_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRAIL_BYTES_MAX", 10_000)
    with postroom.open(":memory:") as db:
        first = kept(db)
        while not (state := state_of(db)).ended:
            db.put(b"a", bytes(1000))
        assert state.since == first.since < state.ended
        stored = sum(len(value or b"") for _, _, value in entries(db))
        assert stored < 12_000
        db.put(b"a", b"not in the trail")
        assert sum(len(value or b"") for _, _, value in entries(db)) == stored

        resumed = kept(db)
        assert resumed.since > state.ended
        assert not resumed.ended
        while not state_of(db).ended:
            db.put(b"a", bytes(1000))
        assert sum(len(value or b"") for _, _, value in entries(db)) < 22_000

        state = kept(db, int(db.now()))
        assert not entries(db)
        db.put(b"a", b"1")
        assert len(entries(db)) == 1
        assert not state_of(db).ended


def test_a_trail_takes_a_share_of_the_free_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "_DEVICE_SHARE", 1 << 62)
    with postroom.open(":memory:") as db:
        kept(db)
        db.put(b"a", b"1")
        db.put(b"a", b"2")
        assert state_of(db).ended
        assert len(entries(db)) == 1


def test_a_trail_ends_with_a_command_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRAIL_WRITES_MAX", 50)
    with postroom.open(":memory:") as db:
        kept(db)
        with db.begin() as tx:
            for number in range(51):
                tx.put(b"%d" % number, b"1")
        assert state_of(db).ended == int(tx.commit_timestamp)
        db.put(b"a", b"1")
        assert entries(db) == []


def test_a_trail_ends_when_the_range_is_split() -> None:
    with postroom.open(":memory:") as db:
        kept(db)
        db.split(b"m")
        db.put(b"a", b"1")
        assert state_of(db) == TrailState()
        assert keys.head_key(b"a") not in [name for name, _, _ in entries(db, b"m")]
        with pytest.raises(Invalid, match="several ranges keeps no trail"):
            kept(db)
        assert ended(db) == TrailState()


@given(st.lists(st.tuples(NAMES, st.integers(0, 3))), NAMES, NAMES)
@settings(max_examples=200)
def test_the_trail_is_in_the_order_of_names(
    found: list[tuple[bytes, int]], lower: bytes, upper: bytes
) -> None:
    names = [entry_name(*each) for each in found]
    assert [parted(name) for name in sorted(names)] == sorted(found)
    span = span_of(1, keys.KeySpan(lower, upper))
    prefix = keys.trail_prefix(1)
    for name, stamp in found:
        place = prefix + entry_name(name, stamp)
        assert (span.lower <= place < span.upper) == (lower <= name < upper)
