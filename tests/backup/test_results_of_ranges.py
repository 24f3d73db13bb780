"""Results of one id in several ranges: images have the newest, and entries of all by their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom
from postroom.backup import restore, verify
from postroom.testing import Store
from tests.backup.moves import CUTS

HOURS = 3600.0


@pytest.fixture
def store() -> Iterator[Store]:
    """Yield a store with a queue in three ranges."""
    with Store() as store:
        store.db.create_queue("q", purge_after=1.0)
        for cut in CUTS:
            store.db.split(cut)
        yield store


def finish(store: Store, key: bytes, *, hours: float, group: str = "") -> None:
    """Enqueue a message with the id ``i``, keep its key as its result, and let it be purged."""
    with store.db.begin() as tx:
        tx.enqueue("q", b"work", id="i", key=key, group=group)
    store.advance(1.0)
    (message,) = store.db.queue("q").claim(wait=5.0)
    with store.db.begin() as tx:
        tx.queues.keep_result(message, hours * HOURS, key)
        tx.acknowledge("q", message)
    store.advance(HOURS)
    assert not store.db.queue("q").messages("done")


def results(db: postroom.Database) -> int:
    return db.queue("q").stats().results


def restored(store: Store, folder: Path) -> Store:
    """Return a store of one range, made of a backup, with the same clock."""
    store.db.backup(folder)
    verify(folder)
    other = Store(store.clock)
    restore(other.db, folder)
    return other


def check(store: Store) -> None:
    """Check that counters and indexes are exact."""
    assert store.db.images.check().wrong == []


@pytest.mark.parametrize("keys", [(b"n", b"u"), (b"u", b"n"), (b"u", b"b", b"n"), (b"i", b"u")])
@pytest.mark.parametrize("hours", [(20, 30, 40), (40, 30, 20), (30, 30, 30)])
def test_the_newest_result_of_an_id_is_restored_and_all_are_purged(
    store: Store, keys: tuple[bytes, ...], hours: tuple[int, ...], tmp_path: Path
) -> None:
    for key, each in zip(keys, hours, strict=False):
        finish(store, key, hours=each)
    assert store.db.queue("q").result("i") == keys[-1]
    assert results(store.db) == len(keys)
    check(store)
    with restored(store, tmp_path / "full") as other:
        check(other)
        assert other.db.queue("q").result("i") == keys[-1]
        left = []
        while results(other.db):
            left.append(results(other.db))
            other.advance(HOURS)
            check(other)
        assert left[0] == len(keys)
        with pytest.raises(postroom.Invalid, match="no message 'i'"):
            other.db.queue("q").result("i")


def test_a_group_has_no_result_of_another_message_with_the_same_id(
    store: Store, tmp_path: Path
) -> None:
    for group in ("n", "u"):
        finish(store, group.encode(), hours=50, group=group)
    with restored(store, tmp_path / "full") as other:
        found = {group: [*other.db.queue("q").results(group)] for group in ("n", "u")}
        assert [each.value for each in found["u"]] == [b"u"]
        assert found["n"] == []


def test_results_of_a_restored_store_are_purged_once_though_it_is_split_again(
    store: Store, tmp_path: Path
) -> None:
    for key, hours in ((b"u", 50), (b"n", 40), (b"b", 60)):
        finish(store, key, hours=hours)
    with restored(store, tmp_path / "full") as other:
        for cut in CUTS:
            other.advance(HOURS)
            other.db.split(cut)
        assert other.db.queue("q").result("i") == b"b"
        assert results(other.db) == 3
        with restored(other, tmp_path / "again") as third:
            check(third)
            assert third.db.queue("q").result("i") == b"b"
            for hours in (40, 10, 10):
                third.advance(hours * HOURS)
                check(third)
            assert results(third.db) == 0


def test_a_message_that_is_kept_again_replaces_its_newest_result_only(
    store: Store, tmp_path: Path
) -> None:
    for key in (b"u", b"n"):
        finish(store, key, hours=50)
    with restored(store, tmp_path / "full") as other:
        finish(other, b"b", hours=10)
        check(other)
        assert other.db.queue("q").result("i") == b"b"
        assert results(other.db) == 2
        other.advance(10 * HOURS)
        check(other)
        assert results(other.db) == 1
        with pytest.raises(postroom.Invalid, match="no message 'i'"):
            other.db.queue("q").result("i")
