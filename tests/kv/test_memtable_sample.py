"""The sample of what was written last: bounded, about right, and of the newest bytes."""

from __future__ import annotations

import pytest

from postroom.kv.span_size import SAMPLE_BYTES, SAMPLES_KEPT, MemtableSample


def written(batches: int, keys: int, size: int, first: int = 0) -> MemtableSample:
    unflushed = MemtableSample()
    for batch in range(batches):
        numbers = range(first + batch * keys, first + (batch + 1) * keys)
        unflushed.wrote({b"%08d" % number: bytes(size) for number in numbers})
    return unflushed


@pytest.mark.parametrize(
    ("batches", "keys", "size"), [(50_000, 1, 92), (50, 1000, 92), (50, 2, 90_000)]
)
def test_bytes_lie_where_they_were_written(batches: int, keys: int, size: int) -> None:
    unflushed, total = written(batches, keys, size), batches * keys * (size + 8)
    middle = b"%08d" % (batches * keys // 2)
    before = unflushed.bytes_in(b"", middle, total)
    assert before == pytest.approx(total / 2, rel=0.05)
    assert before + unflushed.bytes_in(middle, b"a", total) == pytest.approx(total, rel=0.02)
    assert unflushed.bytes_in(b"a", b"b", total) == 0
    assert unflushed.bytes_in(b"a", b"", total) == 0


def test_only_the_newest_bytes_count() -> None:
    unflushed = written(100, 1000, 92)
    half = b"%08d" % 50_000
    assert unflushed.bytes_in(b"", half, 100 * 50_000) < 2 * SAMPLE_BYTES
    assert unflushed.bytes_in(half, b"a", 100 * 50_000) == pytest.approx(5_000_000, rel=0.02)
    assert unflushed.bytes_in(b"", b"a", 0) == 0, "all was flushed"


def test_the_sample_is_bounded() -> None:
    unflushed = written(3, 20 * SAMPLES_KEPT, SAMPLE_BYTES // 10)
    assert len(unflushed._samples) == SAMPLES_KEPT
    unflushed.wrote({b"deleted": None})
    assert len(unflushed._samples) == SAMPLES_KEPT


def test_a_large_value_counts_more_than_the_small_records_beside_it() -> None:
    unflushed = MemtableSample()
    for batch in range(10):
        large = {b"data/%d" % batch: bytes(100_000)}
        unflushed.wrote(large | {b"record/%d/%d" % (batch, each): b"" for each in range(9)})
    data = unflushed.bytes_in(b"data/", b"data0", 1_002_000)
    assert data == pytest.approx(1_000_000, rel=0.02)
