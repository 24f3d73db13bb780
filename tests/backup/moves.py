"""Transactions that move something from range to range, each of which is seen whole."""

from __future__ import annotations

from pathlib import Path

import postroom
from postroom.backup import restore, verify
from postroom.ranges.requests import Increment

MOVES_MAX = 3000
"""The moves of each of three threads, at most: an inbox is peeked at as a whole."""
CUTS = (b"m", b"t")


def split_store() -> postroom.Database:
    """Return a store of three ranges."""
    db = postroom.open(":memory:")
    for cut in CUTS:
        db.split(cut)
    assert len(db.ranges()) == 3
    return db


def move(tx: postroom.Transaction, own: bytes = b"") -> None:
    """Move one from range to range, and tell a third one of it, twice."""
    tx.increment(b"a" + own, -1)
    tx.increment(b"n" + own, 1)
    tx.enqueue_message(b"z", b"moved")
    tx.enqueue_update(Increment(b"y", 1))


def total(db: postroom.Database, prefix: bytes) -> int:
    """Return the sum of the values of keys that are incremented."""
    every = dict(db.scan(prefix, prefix + b"\xff")).values()
    return sum(int.from_bytes(value, "big", signed=True) for value in every)


def check_moves(db: postroom.Database, number: int | None = None) -> int:
    """Check that each move is there whole, once all is delivered; return how many there are."""
    db.drain()
    moved = total(db, b"n")
    assert number in {None, moved}
    assert total(db, b"a") == -moved
    assert total(db, b"y") == moved
    assert len(db.peek(b"z", 10_000)) == moved
    return moved


def check_restored(folder: Path, number: int | None = None) -> int:
    """Check that each move is whole in the store that is made of a backup."""
    verify(folder)
    with postroom.open(":memory:") as db:
        restore(db, folder)
        assert len(db.ranges()) == 1
        first = check_moves(db, number)
        db.run(move)
        assert check_moves(db) == first + 1
        return first
