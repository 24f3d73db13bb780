"""The memory of backups: a few pages and the index of a part's inboxes, however large the store."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import postroom
from postroom.backup import taking, verify

MIB = 1024 * 1024


def peak(act: Callable[[], object]) -> int:
    """Return how many bytes more than before are in use at the most."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_stays_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "PART_BYTES", MIB)
    with postroom.open(tmp_path / "store", durability="none", memory_bytes=32 * MIB) as db:
        for first in range(0, 12_000, 1000):
            with db.begin() as tx:
                for number in range(first, first + 1000):
                    tx.put(b"key/%05d" % number, b"%05d" % number * 400)
                    tx.enqueue_message(b"inbox/%05d" % number, b"x" * 100)
        db.drain()
        with db.begin() as tx:
            for number in range(0, 12_000, 3):
                tx.put(b"key/%05d" % number, b"new")
        full = peak(lambda: db.backup(tmp_path / "full"))
        db.delete_range(b"key/00", b"key/05")
        increment = peak(lambda: db.backup(tmp_path / "one", since=tmp_path / "full"))
    checked = peak(lambda: verify(tmp_path / "one"))
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert size > 24 * MIB
    assert max(full, increment, checked) < 16 * MIB
