"""Lists of a store with several ranges are merged, in order, and show what one range would show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom
from postroom.client import pages
from postroom.errors import Unavailable
from tests.client.worker.running import Running, eventually
from tests.remote.streams import DatabaseOverStreams
from tests.server.hosting import ThreeNodes

KEYS = (b"y", b"a", b"n", b"b", b"z", b"m")


@pytest.fixture(params=["embedded", "remote"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[postroom.Database]:
    """Return a store with three ranges, or a client of it."""
    address = f"unix:{tmp_path / 'socket'}"
    with postroom.open(":memory:", serve=address) as store:
        for key in (b"m", b"x"):
            store.split(key)
        if request.param == "embedded":
            yield store
        else:
            with postroom.connect(address) as client:
                yield client


def send(db: postroom.Database, key: bytes, deliver_at: float | None = None) -> None:
    with db.begin() as tx:
        tx.enqueue_message(key, b"of " + key, deliver_at=deliver_at)


def bury_all(db: postroom.Database) -> None:
    for key in KEYS:
        send(db, key)
        db.drain()
        with db.begin() as tx:
            tx.bury(tx.reap_queue(key), "useless")


@pytest.mark.parametrize("page_bytes", [1, pages.LIST_BYTES_PER_PAGE])
def test_scheduled_messages_are_listed_in_the_order_in_which_they_are_due(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", page_bytes)
    for seconds, key in enumerate(KEYS, 1000):
        send(db, key, seconds)
    assert [each.key for each in db.scheduled()] == [*KEYS]
    assert [each.key for each in db.scheduled(limit=4)] == [*KEYS[:4]]
    assert [each.key for each in db.scheduled(b"b", b"y")] == [b"n", b"b", b"m"]
    assert db.status().counters.pending_messages == len(KEYS)


def test_scheduled_messages_of_all_ranges_are_cancelled_once(db: postroom.Database) -> None:
    for key in KEYS:
        send(db, key, 1000)
    ids = [each.id for each in db.scheduled()]
    assert db.cancel(ids[:4]) == 4
    assert db.cancel(ids) == 2
    assert db.scheduled() == []


@pytest.mark.parametrize("page_bytes", [1, pages.LIST_BYTES_PER_PAGE])
def test_dead_letters_of_all_ranges_are_listed_replayed_and_discarded(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", page_bytes)
    bury_all(db)
    letters = db.dead_letters()
    assert [each.key for each in letters] == [*KEYS]
    assert [each.key for each in db.dead_letters(limit=3)] == [*KEYS[:3]]
    assert db.status().counters.dead == len(KEYS)
    assert db.replay([each.id for each in letters[:3]]) == 3
    db.drain()
    assert {each.key for each in db.inboxes()} == {*KEYS[:3]}
    assert db.discard([each.id for each in letters]) == 3
    assert db.dead_letters() == []


def test_a_transaction_ends_attempts_at_messages_of_several_ranges(db: postroom.Database) -> None:
    for key in KEYS:
        send(db, key)
    db.drain()
    with db.begin() as tx:
        tx.put(b"c", b"anchor")
        tx.bury([*tx.reap_queue(b"y"), *tx.reap_queue(b"a")], "useless")
        tx.postpone([*tx.reap_queue(b"n"), *tx.reap_queue(b"z")], 1000, hold=True)
        tx.postpone(tx.reap_queue(b"m"), 0)
        tx.reap_queue(b"b")
    eventually(lambda: {each.key for each in db.dead_letters()} == {b"y", b"a"})
    eventually(lambda: {each.key for each in db.scheduled()} == {b"n", b"z"})
    (back,) = eventually(lambda: db.peek(b"m"))
    assert back.attempts == 1
    assert db.cancel([each.id for each in db.scheduled()]) == 2
    assert db.status().counters.conserved()


def test_a_conflict_about_messages_of_one_range_leaves_those_of_others(
    db: postroom.Database,
) -> None:
    for key in (b"a", b"n"):
        send(db, key)
    db.drain()
    (one,), (other,) = db.peek(b"a"), db.peek(b"n")
    with db.begin() as tx:
        tx.reap_queue(b"n")
    with pytest.raises(postroom.TransactionConflict), db.begin() as tx:
        tx.bury([one, other])
    assert db.dead_letters() == []
    assert [each.id for each in db.peek(b"a")] == [one.id]


def test_pages_of_inboxes_by_key_go_on_over_the_end_of_a_range(db: postroom.Database) -> None:
    for key in KEYS:
        send(db, key)
    db.drain()
    found, start = list[bytes](), b""
    while page := db.inboxes(start, limit=1, by_key=True):
        found.append(page[0].key)
        start = page[0].key + b"\x00"
    assert found == sorted(KEYS)


def test_workers_share_out_the_keys_of_all_ranges_and_keep_their_order(
    db: postroom.Database,
) -> None:
    seen = list[tuple[bytes, bytes]]()
    workers = [postroom.Worker(db) for _ in range(2)]
    for worker in workers:
        worker.inbox(b"", concurrency=4)(
            lambda message, _: seen.append((message.key, message.value))
        )
    for number in range(3):
        with db.begin() as tx:
            for key in KEYS:
                tx.enqueue_message(key, b"%d" % number)
    db.drain()
    with Running(workers[0]), Running(workers[1]):
        eventually(lambda: not db.inboxes())
    for key in KEYS:
        assert [value for of, value in seen if of == key] == [b"0", b"1", b"2"]


def test_updates_of_several_ranges_are_carried_out_when_drain_returns(
    db: postroom.Database,
) -> None:
    for number, key in enumerate(KEYS):
        with db.begin() as tx:
            tx.put(KEYS[-number], b"")
            tx.enqueue_update(postroom.Put(key + b"/done", b"1"))
    db.drain()
    assert db.get_many([key + b"/done" for key in KEYS]) == [b"1"] * len(KEYS)


# --- a range that is away


@pytest.fixture
def nodes() -> Iterator[ThreeNodes]:
    """Return three nodes, which lead two ranges."""
    made = ThreeNodes(b"m")
    made.lead(1, 1)
    made.lead(2, 2)
    yield made
    made.close()


def test_errors_name_the_range_that_does_not_answer(nodes: ThreeNodes) -> None:
    client = DatabaseOverStreams(nodes)
    assert client.run(client.db.inboxes()) == []
    replicas = nodes.nodes[2].replicas
    replicas.submit_to = lambda *_: None  # type: ignore[method-assign]
    replicas.submit = lambda _: None  # type: ignore[method-assign]
    drained = client.start(client.db.drain(3))
    listed = client.start(client.db.inboxes())
    client.until(lambda: client.go_on(drained, listed), 200)
    with pytest.raises(Unavailable, match="no leader of range 2 answered"):
        listed.result()
    with pytest.raises(TimeoutError, match="entries of range 2 were still due after 3 s"):
        drained.result()
