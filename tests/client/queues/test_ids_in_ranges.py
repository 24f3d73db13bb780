"""A client makes the id of a message up so that it lies in the range of its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.client import sync as blocking
from postroom.client.commits import anchor_of
from postroom.client.queues.made_up import id_within
from postroom.limits import QUEUE_ID_BYTES_MAX
from postroom.messaging.queues.requests import Acknowledge, Attempt, EnqueueInQueue
from postroom.messaging.requests import CheckInbox, EnqueueMessage
from postroom.ranges.requests import Put
from tests.client.stores import Store
from tests.server.hosting import cut

ID = b"00c0ffee00c0ffee0000000000000001"
bounds = st.lists(st.binary(max_size=4), min_size=2, max_size=2, unique=True).map(sorted)


@pytest.fixture
def tx() -> Iterator[blocking.Transaction]:
    """Return a transaction of a store whose ranges begin at m and w."""
    store = Store()
    cut(store.node, b"m", b"w")
    with store.db.begin() as tx:
        yield tx
        tx.rollback()
    store.db.close()


@pytest.mark.parametrize(
    ("start", "end", "led"),
    [
        (b"", b"m", ID),
        (b"m", b"w", b"n" + ID),
        (b"w", None, b"x" + ID),
        (b"user/1", b"user/5", b"user/2" + ID),
        (b"\xff\xff", None, b"\xff\xff" + ID),
        (b"a", b"a\x01", b"a\x00" + ID),
        (b"a", b"a\x00", ID),
        (b"z" * QUEUE_ID_BYTES_MAX, b"z" * QUEUE_ID_BYTES_MAX + b"a", ID),
    ],
)
def test_an_id_has_the_shortest_beginning_that_leads_into_a_span(
    start: bytes, end: bytes | None, led: bytes
) -> None:
    assert id_within(ID, start, end) == led


@given(bounds)
@example([b"m", b"m\x00"])
def test_an_id_lies_in_the_span_if_there_is_room(span: list[bytes]) -> None:
    start, end = span
    led = id_within(ID, start, end)
    assert led.endswith(ID)
    assert start <= led < end or end <= start + b"\x00" + ID


def id_of(handle: Any) -> bytes:
    """Return the id in a handle."""
    found: bytes = handle.id.encode()
    return found


def test_an_id_lies_anywhere_if_nothing_tells_the_range(tx: blocking.Transaction) -> None:
    assert len(id_of(tx.enqueue("q", b""))) == 32


def test_an_id_lies_beside_the_first_key_that_is_written(tx: blocking.Transaction) -> None:
    tx.put(b"n", b"")
    tx.put(b"a", b"")
    assert id_of(tx.enqueue("q", b"")).startswith(b"n")


def test_an_id_lies_in_the_range_of_the_home(tx: blocking.Transaction) -> None:
    tx.put(b"n", b"")
    assert id_of(tx.enqueue("q", b"", key=b"z")).startswith(b"x")
    assert id_of(tx.enqueue("q", b"", key=b"z", group="p")).startswith(b"n")
    assert len(id_of(tx.enqueue("q", b"", group="g"))) == 32


def test_an_id_lies_beside_a_message_that_is_acknowledged(tx: blocking.Transaction) -> None:
    tx.acknowledge("q", "zulu")
    assert id_of(tx.enqueue("q", b"")).startswith(b"x")


def test_an_id_lies_beside_one_that_was_given(tx: blocking.Transaction) -> None:
    tx.enqueue("q", b"")
    tx.enqueue("q", b"", id="p")
    assert id_of(tx.enqueue("q", b"")).startswith(b"n")


def test_an_id_of_a_store_of_one_range_has_no_beginning() -> None:
    store = Store()
    with store.db.begin() as tx:
        tx.put(b"z", b"")
        assert len(id_of(tx.enqueue("q", b""))) == 32
        tx.rollback()
    store.db.close()


# --- anchors

MADE_UP = EnqueueInQueue("q", b"home", "", b"id", b"", is_unique=True)
ACKNOWLEDGED = Acknowledge("q", [Attempt(b"held", "", b"id")])


@pytest.mark.parametrize(
    ("writes", "anchor"),
    [
        ([Put(b"a", b""), ACKNOWLEDGED], b"a"),
        ([MADE_UP, ACKNOWLEDGED], b"held"),
        ([MADE_UP, Put(b"a", b"")], b"a"),
        ([EnqueueMessage(b"mail", b""), ACKNOWLEDGED], b"held"),
        ([CheckInbox(b"read", 0, ()), MADE_UP], b"home"),
        ([CheckInbox(b"read", 0, ()), MADE_UP, ACKNOWLEDGED], b"held"),
        ([CheckInbox(b"read", 0, ())], b"read"),
        ([MADE_UP], b"home"),
        ([EnqueueInQueue("q", b"home", "", b"id", b"")], b"id"),
    ],
)
def test_a_transaction_commits_where_it_has_to_change_something(
    writes: list[Any], anchor: bytes
) -> None:
    assert anchor_of(writes) == anchor


# --- a split while a transaction is open


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a store of one range with a queue."""
    store = Store()
    store.db.create_queue("q", purge_after=60)
    yield store
    store.db.close()


def test_ids_lie_beside_the_transaction_from_the_split_of_the_store_on(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="p")
        before = id_of(tx.enqueue("q", b""))
        store.db.split(b"m")
        store.db.split(b"w")
        after = id_of(tx.enqueue("q", b""))
    assert len(before) == 32
    assert after.startswith(b"n")
    ids = {each.id.encode() for each in store.db.queue("q").messages()}
    assert ids == {b"p", before, after}


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_claims_of_one_range_end_with_their_transaction_after_a_split(
    store: Store, commits: bool
) -> None:
    queue = store.db.queue("q")
    with store.db.begin() as tx:
        for key in (b"a", b"n", b"z"):
            tx.enqueue("q", b"", key=key)
    tx = store.db.begin()
    assert len(tx.claim("q", 3)) == 3
    store.db.split(b"m")
    store.db.split(b"w")
    tx.put(b"a", b"")
    if commits:
        tx.commit()
    else:
        tx.rollback()
    assert len(queue.claim(10)) == (0 if commits else 3)
    assert queue.stats().leased == (0 if commits else 3)


def test_a_commit_with_an_unknown_outcome_has_the_same_anchor_after_a_split(store: Store) -> None:
    """The COMMIT record lies beside the anchor: another one would commit it once more."""
    sent = []
    tx = store.db.begin()
    tx.enqueue("q", b"")
    tx.enqueue("q", b"", id="z")
    sent.append(anchor_of(tx._core._requests()))
    store.db.split(b"m")
    store.db.split(b"w")
    sent.append(anchor_of(tx._core._requests()))
    tx.rollback()
    assert sent == [b"z", b"z"]
