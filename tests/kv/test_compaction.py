"""Compaction in the background after many deletions, and the bounds of its cost."""

from __future__ import annotations

import itertools
import random  # noqa: TID251 - seeded
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.kv import keys
from postroom.kv.background import (
    BYTES_A_DELETION,
    PART_BYTES,
    SAMPLES_KEPT,
    SAMPLES_MIN,
    SETTLE_SECONDS,
    STRIDE,
    Compaction,
    InlineStateWriter,
    StateWriterThread,
    Tombstones,
)
from postroom.kv.engine import WriteSet
from postroom.kv.gathering import Gathering
from postroom.kv.memory import MemoryEngine
from tests.kv.on_disk import INSTALLED, OnDisk

ENOUGH = 2 * SAMPLES_MIN * STRIDE


def name(number: int, space: bytes = keys.DATA) -> bytes:
    return space + b"%09d" % number


def deletions(first: int, count: int, step: int = 1, space: bytes = keys.DATA) -> WriteSet:
    return {name(number, space): None for number in range(first, first + count * step, step)}


class Sized(MemoryEngine):
    """An engine in which each number of a name takes some bytes; it notes what is compacted."""

    def __init__(self, bytes_a_number: float = 100) -> None:
        super().__init__()
        self.bytes_a_number = bytes_a_number
        self.compacted: list[tuple[bytes, bytes]] = []
        self.during: Callable[[], None] = lambda: None

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        return round((int(upper[1:]) - int(lower[1:])) * self.bytes_a_number)

    def compact(self, lower: bytes, upper: bytes) -> None:
        self.compacted.append((lower, upper))
        self.during()


class Background:
    """A compaction on a clock that the test moves."""

    def __init__(self, bytes_a_number: float = 100) -> None:
        self.engine = Sized(bytes_a_number)
        self.tombstones = Tombstones()
        self.now = 100.0
        self.compaction = Compaction(
            self.engine, self.tombstones, InlineStateWriter(), lambda: self.now
        )

    def turns(self, seconds: float) -> list[tuple[bytes, bytes]]:
        """Return what is compacted within ``seconds`` from now."""
        before = len(self.engine.compacted)
        for _ in range(10):
            self.compaction.look()
            self.now += seconds / 10
        self.compaction.look()
        return self.engine.compacted[before:]


def test_a_span_of_deletions_is_compacted_once_they_have_settled() -> None:
    background = Background()
    background.tombstones.wrote(deletions(0, ENOUGH))
    assert background.turns(SETTLE_SECONDS * 0.9) == []
    (span,) = background.turns(SETTLE_SECONDS)
    assert span[0] <= name(STRIDE)
    assert span[1] >= name(ENOUGH - STRIDE)
    assert background.turns(1000) == [], "each deletion counts once"


def test_few_deletions_are_left_alone() -> None:
    background = Background()
    background.tombstones.wrote(deletions(0, ENOUGH // 4))
    assert background.turns(1000) == []


def test_deletions_among_much_else_are_left_alone() -> None:
    background = Background(bytes_a_number=BYTES_A_DELETION / 10)
    background.tombstones.wrote(deletions(0, ENOUGH, step=100))
    assert background.turns(1000) == []
    background.tombstones.wrote(deletions(0, ENOUGH, step=2))
    assert background.turns(1000) != []


def test_a_dense_span_is_found_among_others() -> None:
    background = Background()
    background.tombstones.wrote(deletions(500_000, ENOUGH))
    background.tombstones.wrote(deletions(0, 20 * STRIDE, step=10_000))
    background.tombstones.wrote(deletions(600_000_000, 20 * STRIDE, step=10_000))
    spans = background.turns(1000)
    assert spans
    assert all(name(490_000) <= lower < upper <= name(530_000) for lower, upper in spans)
    covered = sum(int(upper[1:]) - int(lower[1:]) for lower, upper in spans)
    assert covered > ENOUGH * 0.7


def test_a_long_span_is_compacted_in_parts() -> None:
    background = Background(bytes_a_number=BYTES_A_DELETION)
    background.tombstones.wrote(deletions(0, 4 * PART_BYTES // BYTES_A_DELETION))
    spans = background.turns(SETTLE_SECONDS * 1.5)
    assert len(spans) >= 4
    assert all(background.engine.approximate_bytes(*span) <= PART_BYTES for span in spans)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def test_commit_records_do_not_count() -> None:
    background = Background()
    background.tombstones.wrote(deletions(0, 10 * ENOUGH, space=keys.TRANSACTION))
    assert not len(background.tombstones)


def test_the_sample_is_bounded_whatever_is_deleted() -> None:
    tombstones = Tombstones()
    for first in range(0, 5 * SAMPLES_KEPT * STRIDE, 100_000):
        tombstones.wrote(deletions(first, 100_000))
    assert len(tombstones._samples) <= SAMPLES_KEPT
    assert len(tombstones) == pytest.approx(5 * SAMPLES_KEPT * STRIDE, rel=0.1)


def test_small_batches_are_sampled_as_large_ones_are() -> None:
    tombstones = Tombstones()
    for number in range(100 * STRIDE):
        tombstones.wrote({name(number): None, b"\x03kept": b"1"})
    assert len(tombstones) == 100 * STRIDE


def test_compacting_takes_a_fifth_of_the_time_at_most() -> None:
    """A client deletes without end; each compaction takes ten seconds."""
    background = Background()

    def ten_seconds() -> None:
        background.now += 10

    background.engine.during = ten_seconds
    for _ in range(400):
        background.tombstones.wrote(deletions(0, ENOUGH))
        background.compaction.look()
        background.now += 1
    assert 5 <= len(background.engine.compacted) <= (background.now - 100) / 50 + 1


def test_a_stopped_compaction_ends_with_its_part() -> None:
    background = Background(bytes_a_number=BYTES_A_DELETION)
    background.engine.during = background.compaction.stop
    background.tombstones.wrote(deletions(0, 4 * PART_BYTES // BYTES_A_DELETION))
    assert len(background.turns(1000)) == 1
    background.tombstones.wrote(deletions(0, ENOUGH))
    assert background.turns(1000) == []


# --- on disk --------------------------------------------------------------------------------------

PAIRS = 40_000


@pytest.fixture(params=INSTALLED)
def gathering(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gathering]:
    """Yield an engine on disk in which ``PAIRS`` pairs were written, and deleted again."""
    engine: Any = OnDisk(request.param).open(tmp_path)
    writer = StateWriterThread()
    gathered = Gathering(engine, 1000, lambda _: None, writer)
    source = random.Random(1)
    for first in range(0, PAIRS, 1000):
        gathered.write(
            {name(number): source.randbytes(100) for number in range(first, first + 1000)},
            sync=False,
        )
    engine.compact(b"", keys.DATA_END)
    for first in range(0, PAIRS, 1000):
        gathered.write(deletions(first, 1000), sync=False)
    gathered.write({name(PAIRS): b"behind"}, sync=False)
    yield gathered
    writer.close()
    engine.close()


def test_deleted_keys_are_gone_from_the_disk_after_compaction(gathering: Gathering) -> None:
    before = gathering.approximate_bytes(name(0), name(PAIRS))
    assert before > PAIRS * 50
    _compact(gathering)
    gathering._writer.close()  # waits for it
    assert gathering.approximate_bytes(name(0), name(PAIRS)) < before / 10
    assert [key for key, _ in gathering.iterate(name(0), keys.DATA_END)] == [name(PAIRS)]


def test_writes_and_reads_go_on_beside_it(gathering: Gathering) -> None:
    _compact(gathering)
    for number in range(200):
        gathering.write({name(number): b"again"}, sync=False)
        assert gathering.get(name(number)) == b"again"
    assert len(list(gathering.iterate(name(0), name(200)))) == 200


def _compact(gathering: Gathering) -> None:
    now = 0.0
    compaction = gathering.compaction(lambda: now)
    compaction.look()
    now = SETTLE_SECONDS
    compaction.look()
