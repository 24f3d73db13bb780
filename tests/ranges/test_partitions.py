"""Cuts of a span of keys: near equal sizes, never within a key, whatever keys look like."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.kv import keys
from postroom.kv.background import InlineStateWriter
from postroom.kv.engine import Engine
from postroom.kv.gathering import Gathering
from postroom.kv.memory import MemoryEngine
from postroom.limits import PARTITIONS_MAX
from postroom.ranges import partitions
from postroom.ranges.partitions import cuts
from tests.kv.on_disk import INSTALLED, OnDisk

WHOLE = keys.data_span(b"", None)


@pytest.fixture(params=["memory", *INSTALLED])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    on_disk = request.param != "memory"
    engine: Engine = OnDisk(request.param).open(tmp_path / "e") if on_disk else MemoryEngine()
    yield engine
    engine.close()


def fill(engine: Engine, names: list[bytes], size: int) -> None:
    random = Random(1)
    for start in range(0, len(names), 100):
        stored = {keys.head_key(n): random.randbytes(size) for n in names[start : start + 100]}
        engine.write(stored, sync=False)
    engine.compact(b"\x00", b"\xff")


def found(engine: Engine, part_bytes: int, span: keys.KeySpan = WHOLE) -> list[bytes]:
    return [cut for cut in cuts(engine, span, part_bytes) if isinstance(cut, bytes)]


RANDOM = Random(2)
NAMES = {
    "numbers": [b"%06d" % number for number in range(4000)],
    "one far from all others": [b"\x00", *(b"zz/user/%06d" % number for number in range(4000))],
    "long and alike": [b"x" * 3000 + b"%06d" % number for number in range(4000)],
    "random": sorted(RANDOM.randbytes(12) for _ in range(4000)),
}


@pytest.mark.parametrize("kind", NAMES)
def test_parts_are_of_about_one_size(
    engine: Engine, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind.startswith("one far") and "rocksdb" in request.node.name:
        pytest.skip("it knows the ends of its tables, and nothing in between")
    names = NAMES[kind]
    fill(engine, names, 1000)
    total = engine.approximate_bytes(*WHOLE)
    found_cuts = found(engine, total // 5)
    assert found_cuts == sorted(set(found_cuts))
    assert set(found_cuts) <= set(names)
    bounds = [b"", *found_cuts, b"\xff" * 13]
    counts = [sum(start <= name < end for name in names) for start, end in pairwise(bounds)]
    assert len(counts) >= 3
    assert max(counts) < len(names) * 0.5


@pytest.mark.parametrize("installed", INSTALLED)
def test_a_fresh_table_that_no_engine_has_flushed_is_cut(installed: str, tmp_path: Path) -> None:
    """All of it is in the memtable and the log: the engine's tables know nothing of it."""
    opened = OnDisk(installed).open(tmp_path / "e", write_buffer_bytes=32 * 1024 * 1024)
    engine = Gathering(opened, 1024, lambda _: None, InlineStateWriter())
    names = [b"%08d" % number for number in range(60_000)]
    random = Random(3)
    for start in range(0, len(names), 1000):
        few = names[start : start + 1000]
        engine.add({keys.head_key(name): random.randbytes(80) for name in few})
        engine.hand_over()
    assert opened.approximate_bytes(*WHOLE) == 0, "nothing of it was flushed"
    bounds = [b"", *found(engine, 500_000), b"\xff"]
    counts = [sum(start <= name < end for name in names) for start, end in pairwise(bounds)]
    assert len(counts) >= 10
    assert max(counts) < 2 * len(names) / len(counts)
    half = keys.head_key(names[30_000])
    assert engine.approximate_bytes(WHOLE[0], half) == pytest.approx(
        engine.approximate_bytes(half, WHOLE[1]), rel=0.05
    )
    assert engine.approximate_bytes(b"", WHOLE[0]) == 0
    engine.compact(*WHOLE)
    assert engine.approximate_bytes(*WHOLE) == pytest.approx(
        opened.approximate_bytes(*WHOLE), rel=0.05
    ), "what was flushed does not count twice"
    engine.close()
    opened.close()


def test_a_key_and_its_inbox_are_in_one_partition(engine: Engine) -> None:
    prefix = keys.inbox_prefix(b"one")
    engine.write(
        {
            prefix + b"%020d" % number: bytes(Random(number).randbytes(1000))
            for number in range(900)
        },
        sync=False,
    )
    fill(engine, [b"two"], 1000)
    assert set(found(engine, 100_000)) <= {b"two"}


def test_the_work_is_bounded() -> None:
    engine = MemoryEngine()
    names = [b"%08d" % number for number in range(20_000)]
    engine.write({keys.head_key(name): b"x" * 8000 for name in names}, sync=False)
    steps = [cut for cut in cuts(engine, WHOLE, 1) if isinstance(cut, int)]
    assert len(steps) < PARTITIONS_MAX
    assert max(steps) <= 8 * 64 * partitions._WINDOWS


def test_a_range_with_one_key_is_not_divided() -> None:
    engine = MemoryEngine()
    assert found(engine, 1) == []
    engine.write({keys.head_key(b"a"): b"x" * 1000_000}, sync=False)
    assert found(engine, 1) == []
