"""The duties of every engine: one suite, run against every implementation."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.errors import StoreLocked
from postroom.kv.engine import Engine, Reader, WriteSet, join
from postroom.kv.memory import CHUNK_KEYS, MemoryDisk, MemoryEngine
from tests.kv.on_disk import INSTALLED, OnDisk

END = b"\xff" * 8

Opener = Callable[[], Engine]


@pytest.fixture(params=[*INSTALLED, "memory"])
def make_opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Opener]:
    """Return a function that makes stores; its result opens one store, again and again."""
    numbers = itertools.count()

    def make() -> Opener:
        if request.param == "memory":
            disk = MemoryDisk()
            return lambda: MemoryEngine(disk)
        folder = tmp_path / str(next(numbers))
        return lambda: OnDisk(request.param).open(folder)

    return make


@pytest.fixture
def opener(make_opener: Callable[[], Opener]) -> Opener:
    return make_opener()


@pytest.fixture
def engine(opener: Opener) -> Iterator[Engine]:
    engine = opener()
    yield engine
    engine.close()


def content(reader: Reader) -> dict[bytes, bytes]:
    return dict(reader.iterate(b"", END))


def keys(pairs: Iterator[tuple[bytes, bytes]]) -> str:
    return b" ".join(key for key, _ in pairs).decode()


@pytest.mark.parametrize("sync", [False, True])
def test_get_sees_what_was_written(engine: Engine, sync: bool) -> None:
    engine.write({b"a": b"1", b"b": b""}, sync=sync)
    assert (engine.get(b"a"), engine.get(b"b"), engine.get(b"c")) == (b"1", b"", None)
    engine.write({b"a": None, b"b": b"2", b"absent": None}, sync=sync)
    assert (engine.get(b"a"), engine.get(b"b")) == (None, b"2")


def test_keys_and_values_are_any_bytes(engine: Engine) -> None:
    writes: WriteSet = {b"": b"empty", b"\x00": b"\x00" * 5, b"\xff\xff": bytes(range(256))}
    engine.write(writes, sync=False)
    assert content(engine) == writes


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (b"", END, "a b c d"),
        (b"b", b"d", "b c"),
        (b"b", b"b\x00", "b"),
        (b"a", b"b", "a"),
        (b"d", END, "d"),
        (b"aa", b"cc", "b c"),
        (b"bb", b"bc", ""),
        (b"e", END, ""),
        (b"", b"a", ""),
        (b"b", b"b", ""),
        (b"c", b"b", ""),
    ],
)
def test_iterate_keeps_within_bounds(
    engine: Engine, lower: bytes, upper: bytes, expected: str
) -> None:
    engine.write(dict.fromkeys((b"a", b"b", b"c", b"d"), b""), sync=False)
    assert keys(engine.iterate(lower, upper)) == expected
    assert keys(engine.iterate(lower, upper, reverse=True)) == expected[::-1]
    snapshot = engine.snapshot()
    assert keys(snapshot.iterate(lower, upper)) == expected
    assert keys(snapshot.iterate(lower, upper, reverse=True)) == expected[::-1]
    snapshot.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_an_iterator_sees_the_moment_of_the_call(engine: Engine, reverse: bool) -> None:
    before = {b"%04d" % number: b"old" for number in range(3 * CHUNK_KEYS)}
    engine.write(before, sync=False)
    untouched = engine.iterate(b"", END, reverse=reverse)
    begun = engine.iterate(b"", END, reverse=reverse)
    first = next(begun)
    engine.write({key: None if key[-1] & 1 else b"new" for key in before}, sync=False)
    engine.write({b"%04d+" % number: b"new" for number in range(100)}, sync=False)
    expected = sorted(before.items(), reverse=reverse)
    assert list(untouched) == expected
    assert [first, *begun] == expected


def test_a_snapshot_is_isolated_from_later_writes(engine: Engine) -> None:
    engine.write({b"a": b"1", b"b": b"1"}, sync=False)
    snapshot = engine.snapshot()
    engine.write({b"a": b"2", b"b": None, b"c": b"2"}, sync=False)
    engine.compact(b"", END)
    assert content(snapshot) == {b"a": b"1", b"b": b"1"}
    assert (snapshot.get(b"a"), snapshot.get(b"c")) == (b"1", None)
    assert content(engine) == {b"a": b"2", b"c": b"2"}
    snapshot.close()
    snapshot.close()
    with pytest.raises(RuntimeError, match="closed"):
        snapshot.get(b"a")


def test_a_write_set_of_the_wrong_type_changes_nothing(engine: Engine) -> None:
    with pytest.raises((TypeError, AttributeError)):
        engine.write({b"a": b"1", b"b": 5}, sync=True)  # type: ignore[dict-item]
    assert engine.get(b"a") is None
    engine.write({b"a": b"2"}, sync=True)
    assert content(engine) == {b"a": b"2"}


def test_reopening_finds_everything(opener: Opener) -> None:
    engine = opener()
    engine.write({b"%d" % number: b"x" for number in range(100)}, sync=False)
    engine.write({b"5": None}, sync=False)
    before = content(engine)
    engine.close()
    engine.close()
    engine = opener()
    assert content(engine) == before
    engine.close()


def test_opening_twice_is_refused(engine: Engine, opener: Opener) -> None:
    for _ in range(2):
        with pytest.raises(StoreLocked, match="open"):
            opener()
    engine.write({b"a": b"1"}, sync=True)


def test_calls_of_a_closed_engine_are_errors(opener: Opener) -> None:
    engine = opener()
    engine.write({b"a": b"1", b"b": b"2"}, sync=False)
    snapshot, iterator = engine.snapshot(), engine.iterate(b"", END)
    next(iterator)
    engine.close()
    calls: list[Callable[[], object]] = [
        lambda: engine.get(b"a"),
        lambda: list(engine.iterate(b"", END)),
        lambda: engine.write({b"a": b"1"}, sync=False),
        lambda: snapshot.get(b"a"),
        lambda: next(iterator),
        engine.snapshot,
        lambda: engine.compact(b"", END),
        lambda: engine.approximate_bytes(b"", END),
        engine.disk_bytes,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="closed"):
            call()
    snapshot.close()


def test_sizes(engine: Engine) -> None:
    engine.write({b"%05d" % number: b"%0500d" % number * 2 for number in range(5000)}, sync=False)
    engine.compact(b"", END)
    whole, half = engine.approximate_bytes(b"", END), engine.approximate_bytes(b"", b"02500")
    assert 100_000 < whole < 8_000_000
    assert 0.4 < half / whole < 0.6
    assert engine.approximate_bytes(b"b", b"a") == 0
    assert engine.free_bytes() > 0


def test_the_disk_bytes_include_the_last_writes(engine: Engine) -> None:
    before = engine.disk_bytes()
    engine.write({b"%d" % number: os.urandom(1000) for number in range(100)}, sync=False)
    assert 100_000 <= engine.disk_bytes() - before < 110_000
    engine.compact(b"", END)
    assert 100_000 <= engine.disk_bytes() < 130_000


def test_compacting_changes_nothing_that_is_read(engine: Engine) -> None:
    engine.write({b"%03d" % number: b"x" for number in range(300)}, sync=False)
    engine.write({b"%03d" % number: None for number in range(100, 200)}, sync=False)
    before = content(engine)
    for lower, upper in [(b"100", b"200"), (b"150", b"160"), (b"", END), (b"2", b"1")]:
        engine.compact(lower, upper)
        assert content(engine) == before


KEYS = st.binary(max_size=2) | st.sampled_from([b"%04d" % number for number in range(50)])
WRITES = st.dictionaries(KEYS, st.none() | st.binary(max_size=5), max_size=20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITES, st.booleans()),
        st.tuples(st.just("scan"), KEYS, KEYS),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("compact"), KEYS, KEYS),
    ),
    max_size=30,
)


def scan(model: dict[bytes, bytes], lower: bytes, upper: bytes) -> list[tuple[bytes, bytes]]:
    return sorted((key, value) for key, value in model.items() if lower <= key < upper)


def apply(model: dict[bytes, bytes], writes: WriteSet) -> None:
    for key, value in writes.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_any_sequence_of_calls_agrees_with_a_dictionary(
    make_opener: Callable[[], Opener], steps: list[tuple[object, ...]]
) -> None:
    opener = make_opener()
    engine, model = opener(), dict[bytes, bytes]()
    snapshots: list[tuple[Reader, dict[bytes, bytes]]] = []
    for step in steps:
        match step:
            case ("write", dict() as writes, bool() as sync):
                engine.write(writes, sync=sync)
                apply(model, writes)
            case ("scan", bytes() as lower, bytes() as upper):
                expected = scan(model, lower, upper)
                assert list(engine.iterate(lower, upper)) == expected
                assert list(engine.iterate(lower, upper, reverse=True)) == expected[::-1]
                assert engine.get(lower) == model.get(lower)
            case ("snapshot",):
                snapshots.append((engine.snapshot(), dict(model)))
            case ("compact", bytes() as lower, bytes() as upper):
                engine.compact(lower, upper)
            case _:
                engine.close()
                engine, snapshots = opener(), []
        for snapshot, seen in snapshots:
            assert content(snapshot) == seen
    assert content(engine) == model
    engine.close()


@given(
    st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=2)),
    st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=2)),
)
def test_write_sets_are_joined_as_if_updated_whichever_is_larger(
    few: WriteSet, others: WriteSet
) -> None:
    many: WriteSet = {b"%d" % number: b"" for number in range(2000)}
    many.update(others)
    expected = {**few, **many}
    staged = dict(few)
    join(staged, many)
    assert staged == expected
    expected = {**many, **few}
    join(many, few)
    assert many == expected
