"""Integers are a kind of their own: whatever packs the other values, a counter reads as one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import postroom
from postroom.client.codec import resolve
from postroom.client.transaction import Transaction
from postroom.errors import ConditionFailed, WrongType
from postroom.protocol.requests import REQUESTS
from postroom.ranges.evaluators import INTEGER
from postroom.ranges.requests import (
    CommitTransaction,
    ConditionalPut,
    Get,
    GetMany,
    Increment,
    Put,
    Scan,
    ScanChanges,
)
from tests.client.stores import Store

SIX = INTEGER.pack(6)


@pytest.fixture(params=["msgpack", "json"])
def packed(request: pytest.FixtureRequest, store: Store) -> postroom.Database:
    """Return a client of the store whose values are objects."""
    return store.with_codec(request.param)


def first_change(store: Store, db: postroom.Database, after: int) -> postroom.Change:
    changes = db.watch(b"n", after=after)
    try:
        return next(iter(changes))
    finally:
        changes.close()  # type: ignore[attr-defined]


def test_a_counter_is_a_number_with_a_codec_and_bytes_without(
    store: Store, packed: postroom.Database
) -> None:
    before = packed.now()
    packed.put(b"m", "text")
    assert packed.increment(b"n", 6) == 6
    packed.put(b"o", [1])
    at = packed.now()
    packed.increment(b"n")
    for db, six in ((packed, 6), (store.db, SIX)):
        assert db.get(b"n", at=at) == six
        assert db.get_many([b"x", b"n"], at=at) == [None, six]
        assert dict(db.scan(at=at))[b"n"] == six
        assert dict(db.scan(at=at, reverse=True, limit=2))[b"n"] == six
        assert first_change(store, db, before).value == six
    assert packed.get(b"n") == 7
    assert list(packed.scan()) == [(b"m", "text"), (b"n", 7), (b"o", [1])]
    assert [value for _, value in packed.scan(reverse=True)] == [[1], 7, "text"]
    assert postroom.integer(store.db.get(b"n")) == 7


def test_a_snapshot_reads_numbers(packed: postroom.Database) -> None:
    packed.increment(b"n", 6)
    with packed.snapshot() as snapshot:
        packed.increment(b"n")
        assert snapshot.get(b"n") == 6
        assert snapshot.get_many([b"n"]) == [6]
        assert list(snapshot.scan()) == [(b"n", 6)]


def test_a_watch_that_comes_late_and_one_that_waits_see_numbers(
    store: Store, packed: postroom.Database
) -> None:
    start = packed.now()
    packed.increment(b"n", 6)
    seen = packed.watch(b"n", after=start)
    assert next(seen).value == 6
    packed.increment(b"n")
    packed.increment(b"n")
    assert [next(seen).value for _ in range(2)] == [7, 8]
    seen.close()  # type: ignore[attr-defined]


def test_a_transaction_sees_its_own_numbers(store: Store, packed: postroom.Database) -> None:
    packed.increment(b"n", 5)
    packed.put(b"o", "text")
    with packed.begin() as tx:
        assert tx.increment(b"n") == 6
        assert tx.increment(b"new", 2) == 2
        assert tx.get(b"n") == 6
        assert tx.get_for_update(b"n") == 6
        assert tx.get_many([b"new", b"n", b"o"]) == [2, 6, "text"]
        assert list(tx.scan()) == [(b"n", 6), (b"new", 2), (b"o", "text")]
        assert list(tx.scan(reverse=True, limit=2)) == [(b"o", "text"), (b"new", 2)]
        tx.put(b"n", "no number")
        assert tx.get(b"n") == "no number"
        tx.delete(b"n")
        assert tx.increment(b"n", 9) == 9
    assert list(packed.scan()) == [(b"n", 9), (b"new", 2), (b"o", "text")]
    assert packed.increment(b"new") == 3


def test_a_number_that_was_put_over_is_none(packed: postroom.Database) -> None:
    packed.increment(b"n", 5)
    packed.put(b"n", "text")
    assert packed.get(b"n") == "text"
    with pytest.raises(WrongType):
        packed.increment(b"n")


def test_a_number_can_be_expected(packed: postroom.Database) -> None:
    packed.increment(b"n", 5)
    with pytest.raises(ConditionFailed) as failed:
        packed.conditional_put(b"n", "x", 4)
    assert failed.value.actual == 5
    with packed.begin() as tx, pytest.raises(ConditionFailed) as failed:
        tx.conditional_put(b"n", "x", 4)
    assert failed.value.actual == 5
    packed.conditional_put(b"n", 5, 5)  # a value that the codec packs
    packed.conditional_put(b"n", "y", 5)
    assert packed.get(b"n") == "y"
    packed.delete(b"n")
    packed.increment(b"n", 5)
    with packed.begin() as tx:
        tx.conditional_put(b"n", "z", 5)
    assert packed.get(b"n") == "z"


def test_without_a_codec_its_bytes_are_expected(store: Store) -> None:
    store.db.increment(b"n", 6)
    store.db.conditional_put(b"n", b"x", SIX)
    store.db.increment(b"m", 6)
    with store.db.begin() as tx:
        tx.conditional_put(b"m", b"x", SIX)
    assert store.db.get_many([b"n", b"m"]) == [b"x", b"x"]


def test_deferred_increments_make_numbers(packed: postroom.Database) -> None:
    with packed.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"n", 2))
        tx.enqueue_update(postroom.Increment(b"n", 4))
        tx.enqueue_update(postroom.Increment(b"later", 1), execute_at=1)
    packed.drain()
    assert packed.get(b"n") == 6


def test_a_scan_shows_an_integer_that_is_overwritten_while_it_goes_on(
    packed: postroom.Database,
) -> None:
    """A scan goes by the writes that were made before it began."""
    with packed.begin() as tx:
        for number in range(1_500):
            tx.put(b"a/%04d" % number, "text")
    packed.increment(b"b", 6)
    with packed.begin() as tx:
        found = tx.scan()
        next(found)
        tx.put(b"b", "text")
        assert dict(found)[b"b"] == 6
        assert tx.get(b"b") == "text"


def test_bytes_that_no_increment_has_stored_are_no_counter_for_a_codec(
    store: Store, packed: postroom.Database
) -> None:
    store.db.put(b"plain", SIX)
    with pytest.raises(WrongType, match="no 64-bit integer"):
        packed.increment(b"plain")
    assert store.db.increment(b"plain") == 7, "without a codec they are one"
    assert packed.increment(b"plain") == 8
    store.db.put(b"large", INTEGER.pack(2**62))
    assert store.db.increment(b"large") == 2**62 + 1


@pytest.mark.parametrize(("codec", "value"), [("msgpack", "seven ch"[:7]), ("json", 12345678)])
def test_a_value_that_a_codec_packs_into_eight_bytes_is_no_counter(codec: str, value: Any) -> None:
    store = Store(codec=codec)
    assert len(resolve(codec).encode(value)) == 8
    store.db.put(b"a", value)
    with pytest.raises(WrongType, match="no 64-bit integer"):
        store.db.increment(b"a")
    with store.db.begin() as tx, pytest.raises(WrongType, match="no 64-bit integer"):
        tx.increment(b"a")
    with store.db.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"a"))
    store.db.drain()
    assert store.dead_reasons() == ["WrongType"]
    assert store.db.get(b"a") == value
    store.db.close()


def test_the_codec_says_which_key_it_cannot_unpack(store: Store, packed: postroom.Database) -> None:
    store.db.put(b"foreign", b"\xc1")
    store.db.put(b"old", SIX)
    for read in (
        lambda: packed.get(b"foreign"),
        lambda: packed.get_many([b"foreign"]),
        lambda: list(packed.scan()),
        lambda: packed.run(lambda tx: tx.get(b"foreign")),
    ):
        with pytest.raises(WrongType, match=r"b'foreign'.*another codec"):
            read()
    with pytest.raises(WrongType, match=r"b'old'.*another codec"):
        packed.get(b"old")


def test_a_number_that_has_not_eight_bytes_is_refused(store: Store) -> None:
    request = CommitTransaction(
        store.driver.next_id(), store.node.clock.now(), 60.0, 0, b"a", [], [],
        [Put(b"a", b"seven b", integer=True)],
    )  # fmt: skip

    async def send() -> Any:
        return await store.driver.send(request)

    with pytest.raises(WrongType):
        store.driver.run(send())


# --- with earlier clients and nodes


class Earlier(msgspec.Struct, frozen=True, array_like=True):
    """``Value`` before it told of integers."""

    value: bytes | None
    timestamp: int


def test_an_earlier_client_reads_bytes(store: Store) -> None:
    """Unknown fields are at the end of each answer."""
    store.db.increment(b"n", 6)

    async def ask(request: Any) -> Any:
        return await store.driver.send(request)

    for request, told in (
        (GetMany([b"n"]), [SIX]),
        (Scan(b"", None, 0, 9, 999), [[b"n", SIX]]),
    ):
        answer = msgspec.msgpack.encode(store.driver.run(ask(request)))
        assert msgspec.msgpack.decode(answer)[0] == told
    changes = msgspec.msgpack.encode(store.driver.run(ask(ScanChanges(b"", None, 1))))
    assert msgspec.msgpack.decode(changes)[0][0][1:3] == [b"n", SIX]
    value = msgspec.msgpack.encode(store.driver.run(ask(Get(b"n"))))
    assert msgspec.msgpack.decode(value, type=Earlier).value == SIX


def test_requests_and_answers_of_earlier_programs_are_understood() -> None:
    for kind, fields in (
        (Put, ["put", b"k", b"v"]),
        (Increment, ["increment", b"k", 1]),
        (ConditionalPut, ["conditional_put", b"k", b"v", None]),
    ):
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=REQUESTS.write)
        assert type(decoded) is kind
    for kind, answer in ((Get, [b"v", 5]), (GetMany, [[b"v"], 5]), (Scan, [[], None, 5])):
        msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=kind.answer)


def test_an_increment_in_a_transaction_travels_as_a_number(store: Store) -> None:
    tx = store.db.begin()
    tx.increment(b"n", 6)
    core: Transaction = tx._core
    assert core._requests() == [Put(b"n", SIX, integer=True)]
    tx.rollback()
