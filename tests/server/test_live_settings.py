"""Settings that change while a store runs: each takes effect, on all nodes, and stays."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.limits import POLL_SECONDS
from postroom.ranges import settings
from postroom.ranges.settings import FOUNDING, SETTINGS, ChangeSetting, SettingsInForce
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.client.stores import Store
from tests.server.hosting import MEMBERS, ThreeNodes

LONG_SECONDS = 3600.0
MANY_BYTES = 1 << 50


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.db.close()


def value_of(store: Store, name: str) -> tuple[float, bool]:
    """Return the value of a setting, and whether it is stored."""
    (found,) = [each for each in store.db.settings() if each.name == name]
    return found.value, found.is_stored


def is_collected(store: Store, at: int) -> bool:
    """Return whether the past is collected at a timestamp."""
    try:
        store.db.get(b"key", at=at)
    except SnapshotTooOld:
        return True
    return False


def overwritten(store: Store) -> int:
    """Overwrite a value, and return a timestamp before that."""
    store.db.put(b"key", b"old")
    before = store.db.now()
    store.db.put(b"key", b"new")
    return before


def test_a_setting_that_was_never_made_is_that_of_the_start() -> None:
    store = Store(gc_ttl_seconds=7.0)
    assert value_of(store, settings.GC_TTL) == (7.0, False)
    assert value_of(store, settings.SLOW) == (settings.OFF, False)
    store.db.change_setting(settings.GC_TTL, 20)
    assert value_of(store, settings.GC_TTL) == (20, True)
    store.db.change_setting(settings.GC_TTL, None)
    assert value_of(store, settings.GC_TTL) == (7.0, False)
    store.db.close()


def test_a_setting_stays_over_a_restart(store: Store) -> None:
    for name, setting in SETTINGS.items():
        store.db.change_setting(name, setting.least)
    store.restart()
    assert all(value_of(store, name) == (each.least, True) for name, each in SETTINGS.items())
    assert [store.node.settings[name] for name in SETTINGS] == [
        each.least for each in SETTINGS.values()
    ]
    assert store.node.slow_log.is_on


def test_a_longer_time_to_live_keeps_versions_longer(store: Store) -> None:
    at = overwritten(store)
    store.db.change_setting(settings.GC_TTL, LONG_SECONDS)
    store.advance(2 * RECORD_SECONDS)
    assert store.db.get(b"key", at=at) == b"old"
    store.advance(LONG_SECONDS)
    assert is_collected(store, at)


def test_a_shorter_time_to_live_frees_versions_that_were_to_stay() -> None:
    store = Store(gc_ttl_seconds=LONG_SECONDS)
    at = overwritten(store)
    store.advance(2 * RECORD_SECONDS)
    assert not is_collected(store, at)
    store.db.change_setting(settings.GC_TTL, 1)
    store.advance(3 * POLL_SECONDS)
    assert is_collected(store, at)
    store.db.close()


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_shorter_time_to_live_purges_done_messages_that_were_to_stay(
    *, is_in_memory: bool
) -> None:
    store = Store(gc_ttl_seconds=LONG_SECONDS)
    queue = store.db.create_queue("queue", purge_after=0)
    with store.db.begin() as tx:
        tx.enqueue("queue", b"payload")
    [message] = queue.claim()
    message.acknowledge()
    if not is_in_memory:
        store.restart()
        store.db.put(b"key", b"it does not rest")
    store.advance(100.0)
    assert any(b"payload" in value for value in store.dump().values())
    store.db.change_setting(settings.GC_TTL, 50)
    store.advance(3 * POLL_SECONDS)
    assert not any(b"payload" in value for value in store.dump().values())
    store.db.close()


def test_a_shorter_interval_ends_a_long_one(store: Store) -> None:
    store.db.change_setting(settings.GC_INTERVAL, LONG_SECONDS)
    store.advance(30.0)
    at = overwritten(store)
    store.advance(2 * RECORD_SECONDS)
    assert not is_collected(store, at)
    store.db.change_setting(settings.GC_INTERVAL, None)
    store.advance(3 * POLL_SECONDS)
    assert is_collected(store, at)


def test_slow_commits_are_logged_while_the_setting_says_so(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "postroom.slow")

    def lines(seconds: float) -> int:
        holder, before = store.db.begin(), len(caplog.messages)
        holder.get_for_update(b"key")
        late = store.start(store.core.put(b"key", b"value"))
        store.advance(seconds)
        holder.rollback()
        store.driver.settle()
        late.result()
        return len(caplog.messages) - before

    assert lines(2.0) == 0
    store.db.change_setting(settings.SLOW, 1.0)
    assert (lines(2.0), lines(0.5)) == (1, 0)
    store.db.change_setting(settings.SLOW, settings.OFF)
    assert lines(2.0) == 0
    assert store.node.slow_log.timed == {}


def test_a_reserve_of_the_disk_counts_at_once_and_can_be_taken_back(store: Store) -> None:
    store.db.change_setting(settings.DISK_RESERVE, MANY_BYTES)
    store.advance(1.0)
    with pytest.raises(Unavailable, match="kept in reserve"):
        store.db.put(b"key", b"value")
    store.db.change_setting(settings.DISK_RESERVE, 0)
    store.advance(1.0)
    store.db.put(b"key", b"value")


def test_the_time_between_rounds_follows_the_setting(store: Store) -> None:
    store.db.change_setting(settings.POLL, 0.5)
    store.db.put(b"key", b"value")
    store.advance(2 * POLL_SECONDS)
    rounds: list[float] = []
    look: Any = store.node.rounds._look
    store.node.rounds._look = lambda: (rounds.append(store.clock.seconds), look())  # type: ignore[method-assign]
    store.advance(POLL_SECONDS)
    assert len(rounds) >= 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gc-ttl", 0), ("gc-ttl", -1), ("gc-ttl", math.inf), ("gc-ttl", math.nan),
        ("gc-ttl", 1e300), ("gc-interval", 0.1), ("poll", 0), ("poll", 1e9), ("slow", -1),
        ("slow", math.nan), ("slow", -math.inf), ("split-bytes", 1), ("split-bytes", 1.5),
        ("split-bytes", 1 << 62), ("split-load", 0.01), ("split-load", math.inf),
        ("disk-reserve", -1), ("disk-reserve", math.inf),
        ("memory", 1), ("colour", 1), ("", 1), ("x" * 64, 1),
    ],
)  # fmt: skip
def test_a_value_out_of_range_or_of_no_setting_changes_nothing(
    store: Store, name: str, value: float
) -> None:
    before = store.dump()
    with pytest.raises(Invalid, match="nothing was changed"):
        store.db.change_setting(name, value)

    async def ask_anyway() -> object:
        return await store.driver.send(ChangeSetting(name, value))

    with pytest.raises(Invalid, match="nothing was changed"):
        store.driver.run(ask_anyway())
    assert store.dump() == before


@pytest.mark.parametrize("value", ["60", True, b"60", [60]])
def test_a_value_of_another_type_is_refused(store: Store, value: Any) -> None:
    with pytest.raises(TypeError, match="value is a number"):
        store.db.change_setting(settings.GC_TTL, value)


def test_a_setting_of_a_later_version_stays_in_the_record(store: Store) -> None:
    known = SettingsInForce({})
    known.take(b"\x82\xa6colour\x01\xa6gc-ttl\x08")
    assert known[settings.GC_TTL] == 8
    store.db.change_setting(settings.GC_TTL, 8)
    key = settings.SETTINGS_KEY
    store.engine.write({key: b"\x82\xa6colour\x01\xa6gc-ttl\x08"}, sync=True)
    store.restart()
    store.db.change_setting(settings.GC_TTL, 9)
    assert store.dump()[key] == b"\x82\xa6colour\x01\xa6gc-ttl\x09"
    assert {each.name for each in store.db.settings()} == set(SETTINGS)


def test_a_setting_that_changes_a_thousand_times_takes_no_more_room(store: Store) -> None:
    store.db.change_setting(settings.SLOW, 0)
    before = len(store.dump()[settings.SETTINGS_KEY])
    for each in range(1000):
        store.db.change_setting(settings.SLOW, each % 100)
    assert len(store.dump()[settings.SETTINGS_KEY]) == before


def test_three_nodes_take_a_change_at_once_and_keep_it_over_crashes() -> None:
    nodes = ThreeNodes(b"m")
    nodes.lead(1, 1)
    nodes.ask(1, ChangeSetting(settings.GC_TTL, 600))
    nodes.ask(1, ChangeSetting(settings.SLOW, 0.5))

    def have_it() -> bool:
        return all(
            each.settings[settings.GC_TTL] == 600 and each.slow_log.is_on
            for each in nodes.nodes.values()
        )

    nodes.until(have_it, seconds=2.0)
    for each in MEMBERS:
        nodes.crash(each)
    for each in MEMBERS:
        nodes.open(each)
    nodes.until(have_it, seconds=2.0)
    leader = nodes.awaited_leader(1)
    nodes.ask(leader, ChangeSetting(settings.SLOW, None))
    nodes.until(lambda: not any(each.slow_log.is_on for each in nodes.nodes.values()), 2.0)
    nodes.close()


@pytest.mark.parametrize(
    ("founding", "expected"), [({}, (0, False)), (FOUNDING, (512 << 20, True))]
)
def test_a_reset_gives_a_cluster_the_splits_with_which_one_begins(
    founding: dict[str, float], expected: tuple[float, bool]
) -> None:
    store = Store(founding={**founding})
    store.db.change_setting(settings.SPLIT_BYTES, 1 << 30)
    store.db.change_setting(settings.SPLIT_BYTES, None)
    store.db.change_setting(settings.SLOW, 3)
    store.db.change_setting(settings.SLOW, None)
    assert value_of(store, settings.SPLIT_BYTES) == expected
    assert value_of(store, settings.SLOW) == (math.inf, False)
    store.db.close()
