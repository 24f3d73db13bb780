"""The faults of the memory disk, and the sorted map under it."""

from __future__ import annotations

from random import Random  # noqa: TID251 (each use is seeded)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import StoreLocked
from postroom.kv import memory
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.log_device import WriteFault
from postroom.kv.memory import CHUNK_KEYS, MemoryDisk, MemoryEngine, SortedMap


def numbered(engine: MemoryEngine, syncs: list[bool]) -> None:
    """Write the numbers 0, 1, 2... each in a write set of its own."""
    for number, sync in enumerate(syncs):
        engine.write({b"%03d" % number: b"", b"last": b"%d" % number}, sync=sync)


def survivors(disk: MemoryDisk) -> int:
    """Return how many of the numbers are there, having checked that they are a prefix."""
    engine = MemoryEngine(disk)
    found = [key for key, _ in engine.iterate(b"", b"last")]
    last = engine.get(b"last")
    engine.close()
    assert found == [b"%03d" % number for number in range(len(found))]
    assert last == (b"%d" % (len(found) - 1) if found else None)
    return len(found)


@given(syncs=st.lists(st.booleans(), max_size=20), seed=st.integers())
def test_a_loss_of_power_leaves_a_prefix_with_all_that_was_synced(
    syncs: list[bool], seed: int
) -> None:
    disk = MemoryDisk()
    numbered(MemoryEngine(disk), syncs)
    disk.crash(Random(seed))
    synced = max((number + 1 for number, sync in enumerate(syncs) if sync), default=0)
    assert synced <= survivors(disk) <= len(syncs)


def test_a_loss_of_power_can_lose_any_number_of_unsynced_writes() -> None:
    outcomes = set()
    for seed in range(50):
        disk = MemoryDisk()
        numbered(MemoryEngine(disk), [True, False, False])
        disk.crash(Random(seed))
        outcomes.add(survivors(disk))
    assert outcomes == {1, 2, 3}


def test_a_crash_of_the_process_loses_nothing() -> None:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    numbered(engine, [False] * 5)
    disk.crash()
    with pytest.raises(RuntimeError, match="closed"):
        engine.get(b"000")
    engine.close()
    assert survivors(disk) == 5


def test_closing_syncs() -> None:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    numbered(engine, [False] * 5)
    engine.close()
    disk.crash(Random(1))
    assert survivors(disk) == 5


def test_a_write_becomes_durable_after_many_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "UNSYNCED_WRITES_KEPT", 4)
    for seed in range(20):
        disk = MemoryDisk()
        numbered(MemoryEngine(disk), [False] * 10)
        disk.crash(Random(seed))
        assert 6 <= survivors(disk) <= 10


def test_a_closed_engine_gives_the_disk_back_once_only() -> None:
    disk = MemoryDisk()
    first = MemoryEngine(disk)
    disk.crash()
    second = MemoryEngine(disk)
    first.close()
    with pytest.raises(StoreLocked):
        MemoryEngine(disk)
    second.close()


@pytest.mark.parametrize(
    ("fault", "expected"), [(WriteFault.NOT_AT_ALL, 2), (WriteFault.THERE_WHOLE, 3)]
)
def test_after_a_failed_write_there_are_no_more(fault: WriteFault, expected: int) -> None:
    disk = MemoryDisk()
    disk.write_faults[3] = fault
    engine = MemoryEngine(disk)
    with pytest.raises(EngineFailed, match="unknown"):
        numbered(engine, [True] * 5)
    with pytest.raises(EngineFailed, match="unknown"):
        engine.write({b"x": b""}, sync=False)
    assert engine.get(b"001") == b""
    assert disk.writes == 3
    engine.close()
    assert survivors(disk) == expected


def test_a_crash_at_every_write() -> None:
    for crash_at in range(1, 6):
        disk = MemoryDisk()
        disk.at_write = lambda number, disk=disk, at=crash_at: number == at and disk.crash()
        with pytest.raises(RuntimeError, match="closed"):
            numbered(MemoryEngine(disk), [True] * 5)
        disk.at_write = None
        assert survivors(disk) == crash_at - 1


def test_running_out_of_space() -> None:
    disk = MemoryDisk(capacity_bytes=100)
    engine = MemoryEngine(disk)
    engine.write({b"a": bytes(59)}, sync=True)
    assert engine.free_bytes() == 40
    with pytest.raises(EngineFailed, match="no space left"):
        engine.write({b"b": bytes(40)}, sync=True)
    engine.close()
    disk.capacity_bytes = 50
    engine = MemoryEngine(disk)
    assert (engine.get(b"b"), engine.free_bytes()) == (None, 0)
    engine.write({b"a": bytes(51)}, sync=True)
    engine.write({b"a": None}, sync=True)
    assert engine.free_bytes() == 50


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 4 * CHUNK_KEYS), st.sampled_from([None, b"", b"xyz"]), max_size=50
        ),
        max_size=5,
    ),
    st.integers(0, 4 * CHUNK_KEYS),
)
def test_the_map_agrees_with_a_dictionary(changes: list[dict[int, bytes | None]], cut: int) -> None:
    model: dict[bytes, bytes] = {b"%05d" % number: b"v" for number in range(3 * CHUNK_KEYS)}
    map_ = SortedMap().updated(dict(model))
    end = 4 * CHUNK_KEYS + 1
    emptying: list[dict[int, bytes | None]] = [
        dict.fromkeys(range(cut), None),
        {0: b"first"},
        dict.fromkeys(range(cut, end), None),
        {0: None, end: b"last"},
        {1: b"only"},
    ]
    for change in [*changes, *emptying]:
        writes: WriteSet = {b"%05d" % number: value for number, value in change.items()}
        before, previous = dict(model), map_
        map_ = map_.updated(writes)
        model |= {key: value for key, value in writes.items() if value is not None}
        model = {key: value for key, value in model.items() if writes.get(key, b"") is not None}
        assert dict(previous.iterate(b"", b"\xff")) == before
        assert list(map_.iterate(b"", b"\xff")) == sorted(model.items())
        assert map_.bytes_stored == sum(len(key) + len(value) for key, value in model.items())
        assert map_.approximate_bytes(b"", b"\xff") == map_.bytes_stored
        assert len(map_) == len(model)
    assert all(map_.get(key) == value for key, value in model.items())
