"""Bad input: the documented error, which says what is wrong and what to do; nothing changes."""

from __future__ import annotations

import datetime
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroom
from postroom import errors
from postroom.client.pages import PAIRS_PER_PAGE
from postroom.kv import keys
from postroom.kv.memory import MemoryDisk, MemoryEngine, WriteFault
from postroom.kv.opening import open_engine
from postroom.limits import (
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from postroom.server.node import FORMAT_VERSION, StoreRecord
from tests.client.stores import Store, dump
from tests.kv.on_disk import INSTALLED, OnDisk

MIB = 1024 * 1024
Calls = dict[str, Callable[[postroom.Database], Any]]


@pytest.fixture
def store() -> Iterator[Store]:
    """A store that holds a key of each kind, and a message."""
    store = Store()
    store.db.put(b"text", b"text")
    store.db.increment(b"n")
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m")
        tx.enqueue_message(b"inbox", b"later", deliver_at=3600)
    yield store
    store.db.close()


def refused(
    store: Store, call: Callable[[postroom.Database], Any], error: type[Exception], match: str
) -> None:
    """``call`` raises ``error``, and not a byte in the store changes."""
    before = store.dump()
    with pytest.raises(error, match=match):
        call(store.db)
    store.advance(0)
    store.driver.settle()
    assert store.dump() == before


def in_transaction(call: Callable[[postroom.Transaction], Any]) -> Callable[..., Any]:
    def run(db: postroom.Database) -> None:
        with db.begin() as tx:
            tx.put(b"other", b"1")
            tx.enqueue_message(b"other", b"m")
            call(tx)

    return run


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
    "much too late": in_transaction(lambda tx: tx.enqueue_message(b"a", b"m", deliver_at=1e15)),
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
def test_what_leaves_64_bits_overflows(store: Store, call: str) -> None:
    refused(store, OVERFLOWS[call], errors.Overflow, r"(by|b'n').*64-bit signed integer")


def test_only_integers_can_be_incremented(store: Store) -> None:
    for call in (lambda db: db.increment(b"text"),
                 in_transaction(lambda tx: tx.increment(b"text"))):  # fmt: skip
        refused(store, call, errors.WrongType, r"b'text' holds 4 bytes.*delete the key or")


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


def test_what_is_just_within_the_limits_is_stored(path: str) -> None:
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


def test_a_deletion_of_more_than_a_transaction_may_write(store: Store) -> None:
    for number in range(17):
        store.db.put(b"big/%d" % number, bytes(MIB))
    for call in (lambda db: db.delete_range(b"", None),):
        refused(store, call, errors.TransactionTooLarge, "in smaller transactions")
    assert store.db.delete_range(*postroom.prefix(b"big/1")) == 8


def test_a_deferred_deletion_of_any_size_goes_on_step_by_step(store: Store) -> None:
    for number in range(17):
        store.db.put(b"big/%d" % number, bytes(MIB))
    with store.db.begin() as tx:
        tx.enqueue_update(postroom.DeleteRange(b"", None))
    store.db.drain()
    assert store.dead_reasons() == []
    assert not list(store.db.scan(*postroom.prefix(b"big/")))


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


# --- opening


@pytest.mark.parametrize("options", [{"durability": "sometimes"}, {"gc_ttl": 0}, {"codec": "x"}])
def test_unknown_options_are_value_errors(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        postroom.open(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_path_is_a_name_or_a_path() -> None:
    with pytest.raises(TypeError, match="path is a folder's name"):
        postroom.open(42)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path is empty"):
        postroom.open("")


def files(folder: Path) -> dict[str, bytes]:
    """The files of a store, but for the engine's diary and the locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(("LO", "owner"))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store on disk, closed."""
    with postroom.open(tmp_path / "store") as db:
        db.put(b"a", b"1")
    return tmp_path / "store"


_HOLD = "import sys, postroom; db = postroom.open(sys.argv[1]); print('open', flush=True); input()"


def test_a_folder_that_another_process_has_open(folder: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        match = rf"{folder} is open in process {holder.pid} on host .*close it there"
        with pytest.raises(errors.StoreLocked, match=match):
            postroom.open(folder)
        holder.kill()
    with postroom.open(folder) as db:
        assert db.get(b"a") == b"1"


def test_a_folder_that_this_process_has_open(folder: Path) -> None:
    with postroom.open(folder) as db:
        match = rf"open already, in this process \({os.getpid()}\): use that Database"
        with pytest.raises(errors.StoreLocked, match=match):
            postroom.open(folder)
        db.put(b"a", b"2")
    with postroom.open(folder) as db:
        assert db.get(b"a") == b"2"


def test_a_folder_whose_list_of_files_is_damaged(folder: Path) -> None:
    (manifest,) = folder.glob("MANIFEST-*")
    manifest.write_bytes(b"\x00" * 100)
    before = files(folder)
    with pytest.raises(errors.StoreCorrupted, match=f"{folder} is damaged.*from a backup"):
        postroom.open(folder)
    assert files(folder) == before


def test_a_folder_whose_data_is_damaged(folder: Path) -> None:
    (table,) = OnDisk(INSTALLED[0]).tables(folder)
    table.write_bytes(bytes(255 - byte for byte in table.read_bytes()[:100]) * 4)
    before = table.read_bytes()
    with pytest.raises(errors.StoreCorrupted, match=f"{folder} is damaged.*Nothing was changed"):
        postroom.open(folder)
    assert table.read_bytes() == before


def rewrite_record(folder: Path, record: bytes) -> None:
    engine = open_engine(folder)
    engine.write({keys.store_key("store"): record}, sync=True)
    engine.close()


def contents(folder: Path) -> dict[bytes, bytes]:
    engine = open_engine(folder)
    try:
        return dump(engine)
    finally:
        engine.close()


def test_a_folder_of_a_newer_format(folder: Path) -> None:
    newer = StoreRecord(FORMAT_VERSION + 1, b"cluster", 1)
    rewrite_record(folder, msgspec.msgpack.encode(newer))
    before = contents(folder)
    with pytest.raises(
        errors.VersionMismatch, match=f"format {FORMAT_VERSION + 1}.*open it with a"
    ):
        postroom.open(folder)
    assert contents(folder) == before


def test_a_folder_whose_store_record_is_damaged(folder: Path) -> None:
    rewrite_record(folder, b"\xc1")
    before = contents(folder)
    with pytest.raises(errors.StoreCorrupted):
        postroom.open(folder)
    assert contents(folder) == before


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "else")
    engine.write({b"foreign": b"1"}, sync=True)
    engine.close()
    before = contents(tmp_path / "else")
    with pytest.raises(errors.StoreCorrupted, match=r"b'foreign'.*not a Postroom store.*give anot"):
        postroom.open(tmp_path / "else")
    assert contents(tmp_path / "else") == before


def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.Invalid, match=r"is a file, and a store is a folder"):
        postroom.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


# --- devices


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 24 MiB."""
    folder = tmp_path / "device"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(*arguments: str) -> None:
    if os.geteuid() or subprocess.run(["mount", *arguments], check=False).returncode:
        pytest.skip("needs the right to mount a file system")


def test_a_read_only_device(device: Path) -> None:
    with postroom.open(device / "store", disk_reserve_bytes=0) as db:
        db.put(b"a", b"1")
    before = files(device / "store")
    mount("-o", "remount,ro", str(device))
    with pytest.raises(errors.AccessDenied, match=r"Read-only file system.*how its device is moun"):
        postroom.open(device / "store")
    assert files(device / "store") == before


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(errors.AccessDenied, match="its owner and permissions"):
        postroom.open(folder)
    folder.chmod(0o700)


def test_a_device_that_fills_up_refuses_writes_in_time(device: Path) -> None:
    store = Store(partial(open_engine, device / "store"), disk_reserve_bytes=4 * MIB)
    store.db.put(b"a", b"1")
    filler = device / "filler"
    filler.write_bytes(bytes(device_room(device) - 2 * MIB))
    store.advance(0.1)
    refused(store, lambda db: db.put(b"a", b"2"), errors.Unavailable, r"only \d+ bytes are free.*")
    refused(store, in_transaction(lambda tx: tx.reap_queue(b"a")), errors.Unavailable, "free some")
    assert store.db.get(b"a") == b"1"
    filler.unlink()
    store.advance(0.1)
    store.db.put(b"a", b"2")
    store.db.close()


def device_room(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def test_a_device_that_is_full_stops_the_store_but_loses_nothing(device: Path) -> None:
    acknowledged = -1
    db = postroom.open(device / "store", disk_reserve_bytes=0)
    (device / "filler").write_bytes(bytes(device_room(device) - 2 * MIB))

    def fill() -> None:
        nonlocal acknowledged
        for number in range(100):
            db.put(b"%03d" % number, bytes(100_000))
            acknowledged = number

    with pytest.raises((errors.CommitUnknown, errors.Unavailable)):
        fill()
    with pytest.raises(errors.Unavailable, match=r"a write failed.*make sure that the device has"):
        db.get(b"000")
    db.close()
    (device / "filler").unlink()
    with postroom.open(device / "store", disk_reserve_bytes=0) as db:
        found = len(list(db.scan()))
        assert acknowledged + 1 <= found <= acknowledged + 2
        db.put(b"a", b"1")


def test_a_store_in_memory_that_fills_up_refuses_writes_in_time() -> None:
    disk = MemoryDisk(capacity_bytes=4 * MIB)
    store = Store(partial(MemoryEngine, disk), disk_reserve_bytes=2 * MIB)
    for number in range(2):
        store.db.put(b"%d" % number, bytes(MIB))
    store.advance(0.1)
    refused(store, lambda db: db.put(b"a", b"1"), errors.Unavailable, "are kept in reserve")
    refused(store, lambda db: db.delete(b"0"), errors.Unavailable, "nothing was changed")
    assert store.db.get(b"0") == bytes(MIB)


# --- a store that has failed


def test_a_store_that_has_failed_says_so_to_everybody(store: Store) -> None:
    store.engine.fault = WriteFault.NOT_AT_ALL
    with pytest.raises(errors.CommitUnknown):
        store.db.put(b"a", b"1")
    for call in (lambda: store.db.get(b"a"), lambda: store.db.put(b"a", b"1"),
                 lambda: store.db.peek(b"a"), store.db.drain):  # fmt: skip
        with pytest.raises(errors.Unavailable, match="then open it again"):
            call()
