"""The peculiarities of the engine on RocksDB: pages, what it holds open, options, sizes."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import Invalid
from postroom.kv.engine import EngineFailed
from postroom.kv.span_size import covered
from tests.kv.on_disk import END, INSTALLED, OnDisk

pytestmark = pytest.mark.skipif("rocksdb" not in INSTALLED, reason="RocksDB is not installed")

ROCKSDB = OnDisk("rocksdb")


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    engine = ROCKSDB.open(tmp_path / "store")
    yield engine
    engine.close()


def test_few_pairs_are_read_ahead_and_none_of_large_ones(engine: Any) -> None:
    engine.write({b"%04d" % number: b"x" for number in range(2000)}, sync=False)
    engine.write({b"L%04d" % number: bytes(100_000) for number in range(5)}, sync=False)
    cursor, pages = engine._cursor("engine"), []
    whole = cursor.page

    def page(*arguments: Any, **named: Any) -> Any:
        pages.append(whole(*arguments, **named))
        return pages[-1]

    cursor.page = page
    pairs = cursor.pairs(b"", END, reverse=False)
    next(pairs)
    assert len(pages[0]) == 4
    assert sum(1 for _ in pairs) == 2004
    assert max(map(len, pages)) == 256
    assert [len(page) for page in pages[-6:]][1:] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("reverse", [False, True])
def test_readers_of_one_snapshot_do_not_disturb_each_other(engine: Any, reverse: bool) -> None:
    expected = [(b"%04d" % number, b"%d" % number) for number in range(1000)]
    engine.write(dict(expected), sync=False)
    snapshot = engine.snapshot()
    engine.write({key: None for key, _ in expected}, sync=False)
    expected.sort(reverse=reverse)
    two = zip(
        snapshot.iterate(b"", END, reverse=reverse),
        snapshot.iterate(b"", END, reverse=reverse),
        strict=True,
    )
    for number, (one, other) in enumerate(two):
        assert one == other == expected[number]
        assert snapshot.get(b"0500") == b"500"
    found: list[Any] = []

    def read() -> None:
        found.append(list(snapshot.iterate(b"", END, reverse=reverse)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    snapshot.close()


def test_open_iterators_do_not_keep_the_folder_of_a_closed_engine(tmp_path: Path) -> None:
    engine = ROCKSDB.open(tmp_path)
    engine.write({b"%d" % number: b"x" for number in range(50)}, sync=False)
    held = [engine.iterate(b"", END), engine.iterate(b"", END, reverse=True), engine.snapshot()]
    begun = engine.iterate(b"", END)
    next(begun)
    engine.close()
    again = ROCKSDB.open(tmp_path)  # else: "lock hold by current process"
    for reader in (*held[:2], begun):
        with pytest.raises(RuntimeError, match="The engine is closed"):
            next(reader)
    again.close()


def test_a_reader_that_is_dropped_is_forgotten(engine: Any) -> None:
    engine.write({b"a": b"1"}, sync=False)
    for _ in range(100):
        engine.iterate(b"", END)
        next(engine.iterate(b"", END))
        engine.snapshot()
    gc.collect()
    assert len(engine._cursors) == 0


def test_options_of_a_former_opening_do_not_last(tmp_path: Path) -> None:
    for mebibytes in (1, 3):
        engine = ROCKSDB.open(tmp_path, write_buffer_bytes=mebibytes << 20)
        newest = max(tmp_path.glob("OPTIONS-*")).read_text()
        assert f"write_buffer_size={4 * mebibytes << 20}" in newest
        assert "wal_recovery_mode=kTolerateCorruptedTailRecords" in newest
        assert "bloomfilter" in newest
        engine.close()


def test_diaries_do_not_pile_up(tmp_path: Path) -> None:
    for _ in range(6):
        ROCKSDB.open(tmp_path).close()
    assert len(list(tmp_path.glob("LOG*"))) <= 2
    assert len(list(tmp_path.glob("OPTIONS-*"))) <= 2


def test_a_write_that_fails_is_the_last(tmp_path: Path) -> None:
    """It is the last one if it fails in the sync, too, where rocksdict would go on."""
    engine: Any = ROCKSDB.open(tmp_path)
    db = engine._db

    class FailingSync:
        def flush_wal(self, sync: bool) -> None:
            raise Exception("IO error: No space left on device")  # rocksdict raises this

        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

    engine.write({b"a": b"1"}, sync=True)
    engine._db = FailingSync()
    for _ in range(2):
        with pytest.raises(EngineFailed, match=r"No space left.*unknown"):
            engine.write({b"b": b"1"}, sync=True)
    with pytest.raises(EngineFailed):
        engine.compact(b"", END)
    engine.close()
    assert ROCKSDB.count(tmp_path) in (1, 2)


def test_closing_waits_for_a_compaction(tmp_path: Path) -> None:
    """rocksdict would refuse to close, and the folder would be released all the same."""
    engine: Any = ROCKSDB.open(tmp_path)
    db, under_way, go_on = engine._db, threading.Event(), threading.Event()

    class SlowCompaction:
        def compact_range(self, *arguments: Any) -> None:
            under_way.set()
            assert go_on.wait(60)
            db.compact_range(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

    engine.write({b"a": b"1"}, sync=False)
    engine._db = SlowCompaction()
    compacting = threading.Thread(target=engine.compact, args=(b"", END))
    closing = threading.Thread(target=engine.close)
    compacting.start()
    assert under_way.wait(60)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    compacting.join()
    closing.join()
    with pytest.raises(RuntimeError, match="closed"):
        engine.compact(b"", END)
    assert ROCKSDB.count(tmp_path) == 1


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(Invalid, match=r"is not UTF-8.*nothing was changed.*engine leveldb"):
        ROCKSDB.open(path)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_not_taken_for_damage(engine: Any) -> None:
    for call in (lambda: engine.get(5), lambda: list(engine.iterate(5, 6))):
        with pytest.raises((TypeError, KeyError)):
            call()
    engine.write({b"a": b"1"}, sync=True)


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (b"", b"z", 1.0),
        (b"k/0", b"k/8\x00", 1.0),
        (b"", b"k/0", 0.0),
        (b"k/9", b"z", 0.0),
        (b"k/4", b"z", 0.5),
        (b"", b"k/4", 0.5),
        (b"k/2", b"k/4", 0.25),
        (b"k/0", b"k/0\x00", 0.0),
    ],
)
def test_the_covered_share_of_a_file_is_estimated(
    lower: bytes, upper: bytes, expected: float
) -> None:
    assert covered((lower, upper), b"k/0", b"k/8") == pytest.approx(expected, abs=0.01)


def test_a_file_of_one_key_is_covered_or_not() -> None:
    assert covered((b"a", b"b"), b"a", b"a") == 1.0
    assert covered((b"a\x00", b"b"), b"a", b"a") == 0.0


def test_sizes_of_parts_add_up(engine: Any) -> None:
    engine.write({b"%05d" % number: b"%0500d" % number * 2 for number in range(5000)}, sync=False)
    engine.compact(b"", END)
    ends = [b"", b"00100", b"01", b"02500", b"04999", END]
    parts = [engine.approximate_bytes(*pair) for pair in itertools.pairwise(ends)]
    assert sum(parts) == pytest.approx(engine.approximate_bytes(b"", END), abs=len(parts))
    assert min(parts) >= 0
