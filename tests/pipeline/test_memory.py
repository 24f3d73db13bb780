"""Memory is flat in the number of rows: of a node, and of the process that reads from it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import postroom
from tests.pipeline.readers import source

MIB = 1 << 20
FEW, MANY = 1_500, 15_000
VALUE = bytes(1000)


def fill(db: postroom.Database, first: int, end: int) -> None:
    for start in range(first, end, 500):
        with db.begin() as tx:
            for number in range(start, start + 500):
                tx.put(b"%08d" % number, VALUE)


def peak(address: str, **options: object) -> tuple[int, int]:
    """Return how many rows there are, and the most memory that both needed for them."""
    made = source(connect=address, insecure="true", **options)
    reader = made.reader(made.schema())
    rows = 0
    tracemalloc.start()
    try:
        for partition in reader.partitions():
            batches: Any = reader.read(partition)
            rows += sum(batch.num_rows for batch in batches)
        return rows, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_ten_times_as_many_rows_take_no_more_memory(served: str, db: postroom.Database) -> None:
    fill(db, 0, FEW)
    rows, before = peak(served)
    assert rows == FEW
    fill(db, FEW, MANY)
    rows, after = peak(served)
    assert rows == MANY
    assert after < 1.5 * before + 4 * MIB, (before / MIB, after / MIB)
    rows, of_changes = peak(served, table="changes")
    assert rows == MANY
    assert of_changes < 1.5 * before + 4 * MIB, (before / MIB, of_changes / MIB)
