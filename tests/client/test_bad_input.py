"""Bad input: the documented error, which says what is wrong and what to do; nothing changes."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import postroom
from postroom import errors
from postroom.client.pages import PAIRS_PER_PAGE
from postroom.kv.log_device import WriteFault
from postroom.limits import (
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from tests.client.refusals import MIB, in_transaction, refused
from tests.client.stores import Store

Calls = dict[str, Callable[[postroom.Database], Any]]


@pytest.fixture
def store() -> Iterator[Store]:
    """Yield a store that holds a key of each kind, and a message."""
    store = Store()
    store.db.put(b"text", b"text")
    store.db.increment(b"n")
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m")
        tx.enqueue_message(b"inbox", b"later", deliver_at=3600)
    yield store
    store.db.close()


# --- types

WRONG_BYTES = [
    bytearray(b"a"),
    "a",
    None,
    pytest.param(memoryview(b"a"), id="memoryview"),
    1,
    [b"a"],
]

KEYED: dict[str, Callable[[postroom.Database, Any], Any]] = {
    "get": lambda db, key: db.get(key),
    "get_many": lambda db, key: db.get_many([b"a", key]),
    "put": lambda db, key: db.put(key, b"1"),
    "delete": lambda db, key: db.delete(key),
    "delete_range": lambda db, key: db.delete_range(key, b"z"),
    "increment": lambda db, key: db.increment(key),
    "conditional_put": lambda db, key: db.conditional_put(key, b"1", None),
    "scan": lambda db, key: list(db.scan(key)),
    "peek": lambda db, key: db.peek(key),
    "inboxes": lambda db, key: db.inboxes(key),
    "accounting": lambda db, key: db.accounting(key),
    "watch": lambda db, key: db.watch(key),
}
KEYED_IN_TRANSACTION: dict[str, Callable[[postroom.Transaction, Any], Any]] = {
    "get": lambda tx, key: tx.get(key),
    "get_many": lambda tx, key: tx.get_many([key]),
    "get_for_update": lambda tx, key: tx.get_for_update(key),
    "scan": lambda tx, key: list(tx.scan(key, b"z")),
    "put": lambda tx, key: tx.put(key, b"1"),
    "delete": lambda tx, key: tx.delete(key),
    "delete_range": lambda tx, key: tx.delete_range(key, b"z"),
    "increment": lambda tx, key: tx.increment(key),
    "conditional_put": lambda tx, key: tx.conditional_put(key, b"1", None),
    "enqueue_message": lambda tx, key: tx.enqueue_message(key, b"1"),
    "reap_queue": lambda tx, key: tx.reap_queue(key),
    "Put": lambda tx, key: tx.enqueue_update(postroom.Put(key, b"1")),
    "Increment": lambda tx, key: tx.enqueue_update(postroom.Increment(key)),
    "Delete": lambda tx, key: tx.enqueue_update(postroom.Delete(key)),
    "DeleteRange": lambda tx, key: tx.enqueue_update(postroom.DeleteRange(key, b"z")),
    "Accounting": lambda tx, key: tx.enqueue_update(postroom.Accounting(key, {"m": 1})),
}


@pytest.mark.parametrize("method", KEYED)
@pytest.mark.parametrize("key", WRONG_BYTES, ids=repr)
def test_a_key_is_bytes(store: Store, method: str, key: Any) -> None:
    refused(store, lambda db: KEYED[method](db, key), TypeError, r"keys are bytes, not \w+: enc")


@pytest.mark.parametrize("method", KEYED_IN_TRANSACTION)
@pytest.mark.parametrize("key", WRONG_BYTES, ids=repr)
def test_a_key_in_a_transaction_is_bytes(store: Store, method: str, key: Any) -> None:
    call = in_transaction(lambda tx: KEYED_IN_TRANSACTION[method](tx, key))
    refused(store, call, TypeError, r"keys are bytes, not \w+")


@pytest.mark.parametrize("end", [bytearray(b"z"), "z", 1])
def test_the_end_of_a_span_is_bytes_or_none(store: Store, end: Any) -> None:
    for call in (
        lambda db: list(db.scan(b"", end)),
        lambda db: db.delete_range(b"", end),
        lambda db: db.inboxes(b"", end),
        lambda db: db.watch(b"", end),
        in_transaction(lambda tx: list(tx.scan(b"", end))),
        in_transaction(lambda tx: tx.delete_range(b"", end)),
        in_transaction(lambda tx: tx.enqueue_update(postroom.DeleteRange(b"", end))),
    ):
        refused(store, call, TypeError, "keys are bytes")


@pytest.mark.parametrize("value", WRONG_BYTES, ids=repr)
def test_a_value_is_bytes(store: Store, value: Any) -> None:
    for call in (
        lambda db: db.put(b"a", value),
        lambda db: db.conditional_put(b"a", value, None),
        in_transaction(lambda tx: tx.put(b"a", value)),
        in_transaction(lambda tx: tx.conditional_put(b"a", value, None)),
        in_transaction(lambda tx: tx.enqueue_message(b"a", value)),
        in_transaction(lambda tx: tx.enqueue_update(postroom.Put(b"a", value))),
    ):
        refused(store, call, TypeError, 'values are bytes, not .*codec="msgpack"')


def test_subclasses_of_bytes_are_bytes(store: Store) -> None:
    class Name(bytes):
        pass

    store.db.put(Name(b"a"), Name(b"1"))
    assert store.db.get(b"a") == b"1"
    assert type(store.db.get(Name(b"a"))) is bytes


OTHER_TYPES: Calls = {
    "by a string": lambda db: db.increment(b"n", "1"),  # type: ignore[arg-type]
    "by a float": lambda db: db.increment(b"n", 1.5),  # type: ignore[arg-type]
    "by a bool": lambda db: db.increment(b"n", True),
    "limit": lambda db: list(db.scan(limit="1")),  # type: ignore[arg-type]
    "limit of peek": lambda db: db.peek(b"a", None),  # type: ignore[arg-type]
    "at": lambda db: db.get(b"a", at="now"),  # type: ignore[arg-type]
    "at a datetime": lambda db: db.get(b"a", at=datetime.datetime.now(datetime.UTC)),  # type: ignore[arg-type]  # noqa: TID251
    "timeout": lambda db: db.begin(timeout="60"),  # type: ignore[arg-type]
    "ids": lambda db: db.replay("00"),
    "max_results": in_transaction(lambda tx: tx.reap_queue(b"inbox", 1.5)),  # type: ignore[arg-type]
    "max_bytes": in_transaction(lambda tx: tx.reap_queue(b"inbox", max_bytes="1")),  # type: ignore[arg-type]
    "wait": in_transaction(lambda tx: tx.reap_queue(b"nothing", wait="1")),  # type: ignore[arg-type]
    "deliver_at": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", deliver_at="soon")),
    "deliver_at naive": in_transaction(
        lambda tx: tx.enqueue_message(b"a", b"m", deliver_at=datetime.datetime(2030, 1, 1))  # noqa: DTZ001
    ),
    "execute_at": in_transaction(
        lambda tx: tx.enqueue_update(postroom.Increment(b"n"), execute_at=True)
    ),
    "headers": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", headers=["x"])),  # type: ignore[arg-type]
    "header's name": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", headers={1: "x"})),  # type: ignore[dict-item]
    "header": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", headers={"x": []})),
    "update": in_transaction(lambda tx: tx.enqueue_update((b"n", 1))),  # type: ignore[arg-type]
    "update that reads": in_transaction(lambda tx: tx.enqueue_update(b"n")),  # type: ignore[arg-type]
    "no metrics": in_transaction(lambda tx: tx.enqueue_update(postroom.Accounting(b"a", {}))),
    "metric's name": in_transaction(
        lambda tx: tx.enqueue_update(postroom.Accounting(b"a", {1: 1}))  # type: ignore[dict-item]
    ),
    "delta": in_transaction(
        lambda tx: tx.enqueue_update(postroom.Accounting(b"a", {"m": 0.5}))  # type: ignore[dict-item]
    ),
    "integer of": lambda _: postroom.integer("1"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", OTHER_TYPES)
def test_wrong_types_are_type_errors(store: Store, call: str) -> None:
    refused(store, OTHER_TYPES[call], TypeError, r"\w+")


NOT_NAMED: Calls = {
    "acknowledge": in_transaction(lambda tx: tx.acknowledge("q", 3)),  # type: ignore[arg-type]
    "cancel": lambda db: db.queue("q").cancel(3),  # type: ignore[arg-type]
    "postpone": in_transaction(lambda tx: tx.postpone(3)),  # type: ignore[arg-type]
    "bury": in_transaction(lambda tx: tx.bury(None)),  # type: ignore[arg-type]
    "replay": lambda db: db.replay(3),  # type: ignore[arg-type]
    "cancel what is scheduled": lambda db: db.cancel(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", NOT_NAMED)
def test_an_object_in_place_of_messages_or_ids_is_told(store: Store, call: str) -> None:
    refused(store, NOT_NAMED[call], TypeError, r"(messages|ids).*, not (int|NoneType)")


IMPOSSIBLE: Calls = {
    "negative limit": lambda db: list(db.scan(limit=-1)),
    "limit 0 of peek": lambda db: db.peek(b"a", 0),
    "limit 0 of inboxes": lambda db: db.inboxes(limit=0),
    "at 0": lambda db: db.get(b"a", at=0),
    "at -1": lambda db: db.get_many([b"a"], at=-1),
    "at 65 bits": lambda db: list(db.scan(at=1 << 64)),
    "at the future": lambda db: db.get(b"a", at=db.now() + (1000 << 16)),
    "scan at the future": lambda db: list(db.scan(at=db.now() + (1000 << 16))),
    "peek at the future": lambda db: db.peek(b"a", at=db.now() + (1000 << 16)),
    "timeout 0": lambda db: db.begin(timeout=0),
    "timeout 61": lambda db: db.begin(timeout=61),
    "max_results 0": in_transaction(lambda tx: tx.reap_queue(b"inbox", 0)),
    "max_bytes 0": in_transaction(lambda tx: tx.reap_queue(b"inbox", max_bytes=0)),
    "never": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", deliver_at=math.inf)),
    "not a number": in_transaction(
        lambda tx: tx.enqueue_update(postroom.Increment(b"n"), execute_at=math.nan)
    ),
    "much too late": in_transaction(
        lambda tx: tx.enqueue_message(b"a", b"m", deliver_at=datetime.timedelta.max)
    ),
    "ids that are none": lambda db: db.discard(["no id"]),
}


@pytest.mark.parametrize("call", IMPOSSIBLE)
def test_impossible_arguments_are_value_errors(store: Store, call: str) -> None:
    refused(store, IMPOSSIBLE[call], ValueError, r"\w+")


OVERFLOWS: Calls = {
    "increment": lambda db: db.increment(b"n", 2**63),
    "in a transaction": in_transaction(lambda tx: tx.increment(b"n", -(2**63) - 1)),
    "Increment": in_transaction(lambda tx: tx.enqueue_update(postroom.Increment(b"n", 2**63))),
    "Accounting": in_transaction(
        lambda tx: tx.enqueue_update(postroom.Accounting(b"a", {"by": 2**63}))
    ),
    "sum": lambda db: db.increment(b"n", 2**63 - 1),
    "sum in a transaction": in_transaction(lambda tx: tx.increment(b"n", 2**63 - 1)),
    "header": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", headers={"by": 2**63})),
}


@pytest.mark.parametrize("call", OVERFLOWS)
def test_a_number_outside_64_bits_overflows(store: Store, call: str) -> None:
    refused(store, OVERFLOWS[call], errors.Overflow, r"(by|b'n').*64-bit signed integer")


def test_only_integers_can_be_incremented(store: Store) -> None:
    for call in (lambda db: db.increment(b"text"),
                 in_transaction(lambda tx: tx.increment(b"text"))):  # fmt: skip
        refused(store, call, errors.WrongType, r"b'text' contains 4 bytes.*delete the key or")


# --- limits


@pytest.mark.parametrize("method", KEYED)
def test_a_key_over_the_limit(store: Store, method: str) -> None:
    long = b"k" * (KEY_BYTES_MAX + 1)
    match = rf"b'kkkk.*\({KEY_BYTES_MAX + 1} bytes\) .*limit of {KEY_BYTES_MAX} bytes.*use a short"
    refused(store, lambda db: KEYED[method](db, long), errors.KeyTooLarge, match)


@pytest.mark.parametrize("method", KEYED_IN_TRANSACTION)
def test_a_key_over_the_limit_in_a_transaction(store: Store, method: str) -> None:
    long = b"k" * (KEY_BYTES_MAX + 1)
    call = in_transaction(lambda tx: KEYED_IN_TRANSACTION[method](tx, long))
    refused(store, call, errors.KeyTooLarge, str(KEY_BYTES_MAX))


def test_a_value_over_the_limit(store: Store) -> None:
    large = bytes(VALUE_BYTES_MAX + 1)
    for call in (
        lambda db: db.put(b"a", large),
        lambda db: db.conditional_put(b"a", large, None),
        in_transaction(lambda tx: tx.put(b"a", large)),
        in_transaction(lambda tx: tx.conditional_put(b"a", large, None)),
        in_transaction(lambda tx: tx.enqueue_update(postroom.Put(b"a", large))),
    ):
        match = f"b'a' has {VALUE_BYTES_MAX + 1} bytes, the limit is {VALUE_BYTES_MAX}.*in parts"
        refused(store, call, errors.ValueTooLarge, match)


@pytest.mark.parametrize("headers", [None, {"x": "y" * 10}, {"x": b"y" * 10}])
def test_a_message_over_the_limit(store: Store, headers: Any) -> None:
    payload = bytes(MESSAGE_BYTES_MAX + (1 if headers is None else -10))
    call = in_transaction(lambda tx: tx.enqueue_message(b"a", payload, headers=headers))
    match = f"message to b'a' has {MESSAGE_BYTES_MAX + 1} bytes, the limit is {MESSAGE_BYTES_MAX}"
    refused(store, call, errors.ValueTooLarge, match)


def test_a_key_and_a_value_at_their_limits_are_stored(path: str) -> None:
    key, value = b"\x00" * KEY_BYTES_MAX, os.urandom(VALUE_BYTES_MAX)
    with postroom.open(path) as db:
        with db.begin() as tx:
            tx.put(key, value)
            tx.enqueue_message(key, value)
        assert db.get(key) == value
        assert list(db.scan()) == [(key, value)]
        with db.begin() as tx:
            assert [message.value for message in tx.reap_queue(key)] == [value]


BIG: dict[str, Callable[[postroom.Transaction, int], Any]] = {
    "puts": lambda tx, n: tx.put(b"%d" % n, bytes(MIB)),
    "messages": lambda tx, _: tx.enqueue_message(b"a", bytes(MIB)),
    "headers": lambda tx, _: tx.enqueue_message(
        b"a", bytes(MIB - 60_000), headers={"x": "y" * 59_999}
    ),
    "updates": lambda tx, _: tx.enqueue_update(postroom.Put(b"a", bytes(MIB))),
}


@pytest.mark.parametrize("what", BIG)
def test_a_transaction_over_the_limit(store: Store, what: str) -> None:
    def call(tx: postroom.Transaction) -> None:
        for number in range(17):
            BIG[what](tx, number)

    match = f"more than {TRANSACTION_BYTES_MAX} bytes.*in smaller transactions"
    refused(store, in_transaction(call), errors.TransactionTooLarge, match)


def test_a_deferred_deletion_of_any_size_goes_on_step_by_step(store: Store) -> None:
    for number in range(17):
        store.db.put(b"big/%d" % number, bytes(MIB))
    with store.db.begin() as tx:
        tx.enqueue_update(postroom.DeleteRange(b"", None))
    store.db.drain()
    assert store.dead_reasons() == []
    assert not list(store.db.scan(*postroom.prefix(b"big/")))


def test_a_time_to_drain_is_a_number(db: postroom.Database) -> None:
    with pytest.raises(TypeError, match="timeout is a number of seconds, not str"):
        db.drain("30")  # type: ignore[arg-type]


# --- at the wrong moment


def test_reaping_outside_of_a_transaction(store: Store) -> None:
    refused(store, lambda db: db.reap_queue(b"inbox", 10), errors.NotInTransaction,
            r"with db.begin\(\) as tx: tx.reap_queue")  # fmt: skip


CLOSED: Calls = {
    **{name: partial(call, key=b"a") for name, call in KEYED.items() if name != "watch"},  # type: ignore[dict-item]
    "watch": lambda db: next(db.watch(b"a")),
    "begin": lambda db: db.begin().get(b"a"),
    "commit": in_transaction(lambda _: None),
    "run": lambda db: db.run(lambda tx: tx.put(b"a", b"1")),
    "dead_letters": lambda db: db.dead_letters(),
    "replay": lambda db: db.replay([]),
    "drain": lambda db: db.drain(),
    "snapshot": lambda db: db.snapshot().__enter__(),
    "status": lambda db: db.status(),
}


@pytest.mark.parametrize("call", CLOSED)
def test_every_call_after_close_says_so(db: postroom.Database, call: str) -> None:
    db.close()
    with pytest.raises(errors.Invalid, match=r"database was closed.*(open it|connect) again"):
        CLOSED[call](db)


def test_a_transaction_that_outlives_its_database(db: postroom.Database) -> None:
    tx = db.begin()
    tx.get_for_update(b"a")
    tx.put(b"a", b"1")
    db.close()
    for call in (lambda: tx.get(b"b"), tx.commit):
        with pytest.raises(errors.Invalid, match="closed"):
            call()


def test_a_scan_that_outlives_its_database(db: postroom.Database) -> None:
    with db.begin() as tx:
        for number in range(PAIRS_PER_PAGE + 1):
            tx.put(b"%d" % number, b"1")
    pairs = db.scan()
    next(pairs)
    db.close()
    with pytest.raises(errors.Invalid, match="closed"):
        list(pairs)


# --- a store that has failed


def test_a_store_that_has_failed_says_so_to_everybody(store: Store) -> None:
    store.engine.fault = WriteFault.NOT_AT_ALL
    with pytest.raises(errors.CommitUnknown):
        store.db.put(b"a", b"1")
    for call in (lambda: store.db.get(b"a"), lambda: store.db.put(b"a", b"1"),
                 lambda: store.db.peek(b"a"), store.db.drain):  # fmt: skip
        with pytest.raises(errors.Unavailable, match="then open it again"):
            call()
