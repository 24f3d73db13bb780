"""The count of all entries of a store with several ranges, each of which counts its own."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from postroom.errors import SnapshotTooOld
from postroom.kv import keys
from postroom.messaging.requests import InboxIndexEntry
from tests.client.images import Workload
from tests.client.stores import Store
from tests.client.test_recount import fill
from tests.server.splitting import split

CUTS = (b"a/1", b"inbox/1", b"k")


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    made = Store(remote=request.param)
    yield made
    made.node.close()


def filled(store: Store) -> Store:
    """Fill a store with a little of everything, and split it."""
    fill(store.db)
    for cut in CUTS:
        split(store, cut)
    assert len(store.db.ranges()) == 4
    return store


def test_ranges_count_their_entries_and_find_no_difference(store: Store) -> None:
    fill(store.db)
    before = store.db.images.check().tables
    for cut in CUTS:
        split(store, cut)
    counted = store.db.images.check()
    assert counted.wrong == []
    of_keys = ("data", "inbox", "inbox_index", "accounting", "queue", "outbox", "dead_letters")
    assert [counted.tables.get(name) for name in of_keys] == [before.get(name) for name in of_keys]
    assert counted.tables["counters"] > before["counters"]


def test_a_check_at_one_timestamp_is_of_that_whatever_is_written(store: Store) -> None:
    filled(store)
    with store.db.hold(whole=True) as at:
        before = store.db.images.check(at)
        with store.db.begin() as tx:
            tx.put(b"later", b"1")
            tx.enqueue_message(b"inbox/7", b"later")
        assert store.db.images.check(at) == before
        assert before.wrong == []
    with pytest.raises(SnapshotTooOld, match="whole"):
        store.db.images.check(at)
    assert store.db.images.check().tables["data"] == before.tables["data"] + 1


def test_a_range_that_split_after_the_timestamp_counts_what_it_had(store: Store) -> None:
    filled(store)
    with store.db.hold(whole=True) as at:
        before = store.db.images.check(at)
        for cut in (b"a/0", b"inbox/2", b"x"):
            split(store, cut)
        store.db.create_queue("new")
        assert store.db.images.check(at) == before


def test_each_difference_is_told_with_its_range(store: Store) -> None:
    filled(store)
    entries = {
        keys.mail_key(b"inbox/1"): InboxIndexEntry(9, b""),
        keys.mail_key(b"z"): InboxIndexEntry(1, b""),
    }
    written = {key: msgspec.msgpack.encode(entry) for key, entry in entries.items()}
    store.node.engine.write(written, sync=True)
    wrong = store.db.images.check().wrong
    assert any("range 3: messages in the inbox of b'inbox/1': 9 are counted" in w for w in wrong)
    assert any("range 4: inboxes: 1 are counted, 0 are there" in w for w in wrong)


def test_any_work_in_several_ranges_leaves_counters_that_agree() -> None:
    store = Store()
    work = Workload(store.db, 5, delays=(None, 3600.0))
    for step in range(60):
        work.step()
        if step % 20 == 10:
            split(store, b"%c" % (step // 20 + 97))
            with store.db.hold(whole=True) as at:
                assert store.db.images.check(at).wrong == []
