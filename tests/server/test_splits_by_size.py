"""Ranges that split by their size: as they are told to, in the middle, and otherwise never."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from postroom.errors import Invalid, Unavailable
from postroom.kv.engine import Engine
from postroom.limits import SPLIT_BYTES_MIN
from postroom.messaging.halves import MessagingHalves
from postroom.messaging.trail_requests import KeepTrail
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import Role
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.settings import SPLIT_BYTES, ChangeSetting, ReadSettings
from postroom.ranges.split import by_size
from postroom.ranges.split.by_size import REFUSED_SECONDS, RETRY_SECONDS, key_to_split
from tests.client.stores import Store
from tests.remote.streams import Streams
from tests.server.hosting import ThreeNodes
from tests.server.splitting import refuse

MIB = 1 << 20
VALUE = bytes(100_000)


@pytest.fixture(params=[False, True], ids=["without a word", "with a first word"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store whose ranges split at a mebibyte."""
    made = Store(first_words={SPLIT_BYTES: MIB}) if request.param else Store()
    if not request.param:
        assert made.db.configure_ranges(split_bytes=MIB) == MIB
    yield made
    made.db.close()


def fill(store: Store, number: int = 40) -> None:
    """Put about 100,000 bytes under each of so many keys."""
    for each in range(number):
        store.db.put(b"key/%03d" % each, VALUE)


def ranges_of(store: Store) -> list[RangeInfo]:
    """Return the ranges in the order of their keys."""
    hosted = store.node.replicas.hosted.values()
    infos = [each.replica.listing.info() for each in hosted]
    return sorted(infos, key=lambda each: each.start)


def test_ranges_are_split_in_the_middle_until_none_is_too_large(store: Store) -> None:
    fill(store, 160)
    store.advance(30 * RETRY_SECONDS)
    ranges = ranges_of(store)
    assert len(ranges) >= 4
    assert all(each.size_bytes <= 1.1 * MIB for each in ranges)
    assert min(each.size_bytes for each in ranges) >= MIB / 16
    assert all(one.end == other.start for one, other in pairwise(ranges))
    for each in range(160):
        assert store.db.get(b"key/%03d" % each) == VALUE
    store.advance(10 * RETRY_SECONDS)
    assert [each.id for each in ranges_of(store)] == [each.id for each in ranges]


def test_a_store_that_is_not_told_to_never_splits() -> None:
    store = Store()
    fill(store)
    store.advance(10 * RETRY_SECONDS)
    assert len(ranges_of(store)) == 1
    assert store.db.configure_ranges() == 0
    store.db.close()


def test_the_first_word_counts_until_a_user_says_another_one() -> None:
    store = Store(first_words={SPLIT_BYTES: 4 * MIB})
    store.advance(RETRY_SECONDS)
    assert store.db.configure_ranges() == 4 * MIB
    store._options = type(store._options)(first_words={SPLIT_BYTES: 2 * MIB})
    store.restart()
    store.advance(RETRY_SECONDS)
    assert store.db.configure_ranges() == 4 * MIB
    assert store.db.configure_ranges(split_bytes=0) == 0
    store.restart()
    store.advance(RETRY_SECONDS)
    assert store.db.configure_ranges() == 0
    fill(store)
    store.advance(10 * RETRY_SECONDS)
    assert len(ranges_of(store)) == 1
    store.db.close()


def test_a_size_that_is_no_size_is_refused(store: Store) -> None:
    with pytest.raises(Invalid, match=f"{SPLIT_BYTES_MIN} to .*, not 1000"):
        store.db.configure_ranges(split_bytes=1000)
    with pytest.raises(ValueError, match="split_bytes is at least 0"):
        store.db.configure_ranges(split_bytes=-1)
    with pytest.raises(TypeError, match="split_bytes"):
        store.db.configure_ranges(split_bytes="1MiB")  # type: ignore[arg-type]


def test_a_range_whose_bytes_lie_under_one_key_is_not_split_nor_tried_again_at_once(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def counted(engine: Engine, bounds: Bounds, bytes_max: int) -> bytes | None:
        tried.append(engine.approximate_bytes(*bounds.data))
        return key_to_split(engine, bounds, bytes_max)

    monkeypatch.setattr(by_size, "key_to_split", counted)
    for _ in range(40):
        with store.db.begin() as tx:
            tx.enqueue_message(b"inbox", VALUE)
    store.advance(REFUSED_SECONDS)
    (whole,) = ranges_of(store)
    assert whole.size_bytes > MIB
    assert 1 <= sum(size > MIB for size in tried) <= 2
    assert any("bytes lie under one key" in each for each in caplog.messages)


def test_a_range_that_cannot_be_split_is_told_once_in_ten_minutes(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessagingHalves, "check", refuse)
    fill(store)
    store.advance(REFUSED_SECONDS)
    assert len(ranges_of(store)) == 1
    assert store.db.get(b"key/000") == VALUE
    told = [each for each in caplog.messages if "larger than ranges are to be" in each]
    assert 1 <= len(told) <= 2
    assert "cannot be divided" in told[0]


def test_a_range_that_keeps_a_trail_is_not_split_until_that_ends(store: Store) -> None:
    def keep_trail(is_kept: bool) -> None:
        async def ask() -> object:
            return await store.driver.send(KeepTrail(is_kept))

        store.driver.run(ask())

    keep_trail(True)
    fill(store)
    store.advance(10 * RETRY_SECONDS)
    assert len(ranges_of(store)) == 1
    keep_trail(False)
    store.advance(10 * RETRY_SECONDS)
    assert len(ranges_of(store)) > 1


def test_ranges_do_not_split_until_all_nodes_can_read_that(store: Store) -> None:
    class Older:
        is_heard = True
        entries_version = 1

    with pytest.MonkeyPatch.context() as upgrade:
        upgrade.setattr("postroom.raft.group.RaftGroup.progress", lambda _: {7: Older})
        fill(store)
        store.advance(10 * RETRY_SECONDS)
        assert len(ranges_of(store)) == 1
        assert store.db.get(b"key/000") == VALUE
    store.advance(10 * RETRY_SECONDS)
    assert len(ranges_of(store)) > 1


def test_the_leader_of_another_range_gets_its_ids_from_the_root() -> None:
    nodes = ThreeNodes()
    nodes.lead(1, 1)
    nodes.lead(2, 2)
    found = list[int]()

    async def ask() -> None:
        found.append(await nodes.nodes[2].calls.new_range_id())

    for number in (1, 2):
        nodes.nodes[2].tasks.spawn(ask())
        nodes.until(lambda number=number: len(found) == number)  # type: ignore[misc]
    assert found[1] == found[0] + 1 > 3
    nodes.close()


def test_a_follower_knows_the_setting() -> None:
    nodes = ThreeNodes()
    nodes.lead(1, 1)
    assert nodes.ask(1, ChangeSetting(SPLIT_BYTES, 8 * MIB)).value == 8 * MIB
    nodes.lead(1, 3)
    assert {each.name: each.value for each in nodes.ask(3, ReadSettings())}[SPLIT_BYTES] == 8 * MIB
    nodes.close()


def test_ranges_of_three_nodes_split_and_spread_until_a_user_says_never() -> None:
    nodes = ThreeNodes(b"")
    nodes.turn_seconds = 0.02
    client = Streams(nodes, Role.ADMIN)
    assert client.ask(ChangeSetting(SPLIT_BYTES, MIB)).value == MIB

    def listed() -> list[RangeInfo]:
        found: list[RangeInfo] = client.ask(ListRanges(b"", None))
        return found

    def is_spread() -> bool:
        led = {each.group.leader for each in nodes.nodes[1].replicas.hosted.values()}
        return len(nodes.nodes[1].replicas.hosted) >= 4 and len(led) == 3

    for each in range(40):
        client.put(each + 1, b"key/%03d" % each, VALUE)
    client.until(is_spread, 20 * RETRY_SECONDS)
    client.pass_time(2 * RETRY_SECONDS)  # the last ones have split, too
    assert {each.leader for each in listed()} == {1, 2, 3}
    assert client.ask(ChangeSetting(SPLIT_BYTES, 0)).value == 0
    before = len(listed())
    for each in range(40):
        client.put(each + 41, b"more/%03d" % each, VALUE)
    client.pass_time(3 * RETRY_SECONDS)
    assert len(listed()) == before
    nodes.close()


def test_a_split_is_tried_again_with_the_same_id(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[int]()
    check = store.node.check_new_range

    def check_later(range_id: int) -> None:
        told.append(range_id)
        if len(told) < 3:
            raise Unavailable("this node does not know yet of the range id")
        check(range_id)

    monkeypatch.setattr(store.node, "check_new_range", check_later)
    fill(store)
    for _ in range(8):
        store.advance(RETRY_SECONDS)
    assert told[:3] == [2, 2, 2]
    assert len(ranges_of(store)) >= 2
