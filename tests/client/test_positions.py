"""Named positions: what was changed after them stays readable, for their time and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import postroom
from postroom import aio, limits
from postroom.client.commits import alone
from postroom.errors import ConditionFailed, Invalid, SnapshotTooOld
from postroom.kv import keys
from postroom.ranges.protections import KeepPosition, Position, ReadPositions
from postroom.ranges.requests import CommitTransaction, ConditionalPut, Put
from tests.client.stores import Store

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.db.close()


def positions(store: Store) -> list[Position]:
    async def ask() -> list[Position]:
        found: list[Position] = await store.driver.send(ReadPositions())
        return found

    return store.driver.run(ask())


def records(store: Store) -> list[bytes]:
    return [key for key in store.dump() if key.startswith(keys.record_key(1, "position "))]


def change(store: Store, times: int = 3, seconds: float = 100.0) -> None:
    """Overwrite a key several times, and let the collector pass."""
    for number in range(times):
        store.db.put(b"k", b"%d" % number)
        store.advance(seconds)


def read_after(store: Store, at: int) -> list[bytes]:
    """Return the values that a reader finds which goes on after ``at``."""
    found = store.db.bulk.recent_changes(b"", None, at)
    return [each.value or b"" for each in found.changes]


def can_be_read(store: Store, at: int) -> bool:
    try:
        read_after(store, at)
    except SnapshotTooOld:
        return False
    return True


@pytest.mark.parametrize("again", [Store.restart, Store.kill], ids=["restart", "kill"])
def test_changes_after_a_position_are_readable_over_restarts(
    store: Store, again: Callable[[Store], None]
) -> None:
    at, other = store.db.now(), store.db.now()
    store.db.keep_position("reader", at)
    change(store)
    again(store)
    change(store)
    assert read_after(store, at) == [b"0", b"1", b"2"] * 2
    assert can_be_read(store, other), "it is after the position"


def test_collection_goes_on_as_far_as_the_oldest_position(store: Store) -> None:
    first = store.db.now()
    store.db.keep_position("one", first)
    store.db.keep_position("two", first)
    change(store)
    second = store.db.now()
    store.db.keep_position("one", second)
    change(store)
    assert can_be_read(store, first), "the other one has not moved"
    store.db.keep_position("two", second)
    change(store)
    assert not can_be_read(store, first)
    assert can_be_read(store, second)
    assert [(each.name, each.timestamp) for each in positions(store)] == [
        ("one", second), ("two", second),
    ]  # fmt: skip


def test_a_position_that_was_forgotten_holds_back_nothing(store: Store) -> None:
    at = store.db.now()
    store.db.keep_position("reader", at)
    assert store.db.forget_position("reader")
    assert not store.db.forget_position("reader")
    change(store)
    assert not can_be_read(store, at)
    assert not records(store)


def test_a_position_ends_with_its_time_and_leaves_nothing(store: Store) -> None:
    at = store.db.now()
    store.db.keep_position("reader", at, seconds=HOUR)
    change(store, times=30)
    assert can_be_read(store, at)
    store.advance(HOUR)
    assert not positions(store)
    assert not can_be_read(store, at)
    assert not records(store)
    assert not store.db.forget_position("reader")


def test_a_position_is_kept_for_a_day_and_a_week_at_most(store: Store) -> None:
    at = store.db.now()
    store.db.keep_position("reader", at)
    (kept,) = positions(store)
    assert (kept.until - at) >> 16 == pytest.approx(DAY * 1000, abs=1000)
    with pytest.raises(Invalid, match="a week"):
        store.db.keep_position("reader", at, seconds=8 * DAY)
    assert positions(store) == [kept]


def test_a_position_that_is_kept_again_and_again_is_not_kept_for_longer(store: Store) -> None:
    """A reader that fails for ever at the same place must not fill the device."""
    at = store.db.now()
    for _ in range(20):
        store.db.keep_position("reader", at, seconds=HOUR)
        change(store, times=1)
    before = positions(store)
    store.db.keep_position("reader", at, seconds=HOUR)
    assert positions(store) == before
    store.db.keep_position("reader", at, seconds=2 * HOUR)
    assert positions(store)[0].until > before[0].until, "more time was asked for"
    store.db.keep_position("reader", store.db.now(), seconds=HOUR)
    change(store, times=1)
    assert positions(store)[0].until > before[0].until


def test_a_position_whose_changes_are_collected_is_refused_and_the_one_before_stays(
    store: Store,
) -> None:
    at = store.db.now()
    change(store)
    store.db.keep_position("reader", store.db.now())
    before = positions(store)
    with pytest.raises(SnapshotTooOld, match="the position was not kept"):
        store.db.keep_position("reader", at)
    with pytest.raises(Invalid, match="future"):
        store.db.keep_position("reader", store.db.now() + (1 << 40))
    assert positions(store) == before


def test_a_commit_that_fails_moves_no_position(store: Store) -> None:
    at = store.db.now()
    store.db.keep_position("reader", at)
    change(store)
    position = KeepPosition("reader", int(store.db.now()), HOUR)
    failing = ConditionalPut(b"k", b"v", b"something else")

    async def commit() -> None:
        request = alone(store.driver, b"", position)
        await store.driver.send(CommitTransaction(*[*_fields(request)[:-1], [position, failing]]))

    with pytest.raises(ConditionFailed):
        store.driver.run(commit())
    change(store)
    assert can_be_read(store, at)


def test_a_transaction_in_another_range_than_the_first_one_keeps_no_position(store: Store) -> None:
    store.db.split(b"m")
    position = KeepPosition("reader", int(store.db.now()), HOUR)
    for keys_ in ([b"z"], [b"z", b"a"]):
        request = alone(store.driver, b"z", position)
        puts = [Put(key, b"v") for key in keys_]
        changed = msgspec.structs.replace(request, anchor=b"z", writes=[*puts, position])
        with pytest.raises(Invalid, match="in a transaction of its own"):
            store.driver.run(_sent(store, changed))
    assert positions(store) == []
    assert store.db.get(b"a") is None
    store.db.keep_position("reader", store.db.now())
    assert [each.name for each in positions(store)] == ["reader"]


async def _sent(store: Store, request: Any) -> Any:
    return await store.driver.send(request)


def _fields(request: Any) -> list[Any]:
    return [getattr(request, name) for name in request.__struct_fields__]


def test_the_number_of_positions_is_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.ranges.protections.POSITIONS_MAX", 3)
    at = store.db.now()
    for number in range(3):
        store.db.keep_position(f"reader {number}", at, seconds=HOUR * (1 + number))
    with pytest.raises(Invalid, match="forget-position"):
        store.db.keep_position("one more", at)
    store.db.keep_position("reader 1", store.db.now(), seconds=HOUR)
    store.restart(after_seconds=1.5 * HOUR, services=False)
    store.db.keep_position("one more", store.db.now())
    assert [each.name for each in positions(store)] == ["one more", "reader 2"]
    assert len(records(store)) == 2, "those that were over have made room"


@pytest.mark.parametrize("name", ["", "n" * 129, "\ud800"])
def test_a_name_that_cannot_be_is_refused(store: Store, name: str) -> None:
    with pytest.raises(Invalid, match="characters"):
        store.db.keep_position(name, store.db.now())
    assert not positions(store)


@pytest.mark.parametrize("name", ["ä/\x00 b", "n" * 128])
def test_a_name_may_have_any_characters(store: Store, name: str) -> None:
    store.db.keep_position(name, store.db.now())
    assert [each.name for each in positions(store)] == [name]


def test_done_messages_of_queues_can_be_read_at_a_position(store: Store) -> None:
    queue = store.db.create_queue("q", purge_after=0)
    with store.db.begin() as tx:
        tx.enqueue("q", b"payload")
    store.db.keep_position("reader", store.db.now(), seconds=HOUR)
    queue.acknowledge(queue.claim(1))
    at = store.db.now()
    change(store)
    assert len(queue.messages("done", at=at)) == 1
    store.advance(2 * HOUR)
    assert not queue.messages("done")


def test_status_tells_the_positions() -> None:
    with postroom.open(":memory:") as db:
        at = db.now()
        db.keep_position("reader", at, seconds=HOUR)
        (found,) = db.status().positions
        assert (found.name, found.position) == ("reader", at)
        assert 0 <= found.behind_seconds < 600
        assert found.protected_until.datetime > at.datetime
        assert isinstance(found, postroom.PositionInfo)
        assert not postroom.Status(*db.status()[:7]).positions


def test_coroutines_keep_positions_too() -> None:
    async def use() -> None:
        async with await aio.open(":memory:") as db:
            at = await db.now()
            await db.keep_position("reader", at)
            assert [each.name for each in (await db.status()).positions] == ["reader"]
            assert await db.forget_position("reader")
            assert not (await db.status()).positions

    asyncio.run(use())


def test_the_bounds_are_those_of_the_page() -> None:
    assert (limits.POSITION_SECONDS, limits.POSITION_SECONDS_MAX) == (DAY, 7 * DAY)
