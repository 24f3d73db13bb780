"""A range on its way to another node: read from one moment, put in place in pieces."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.memory import MemoryEngine
from postroom.limits import CHUNK_BYTES_MAX
from postroom.ranges import state as range_state
from postroom.ranges.state import APPLIED_RECORD, RIGHT_HALF_RECORD, AppliedRecord, encode_applied

APPLIED_KEY = keys.record_key(1, APPLIED_RECORD)
OUTSIDE = {keys.store_key("store"): b"me", keys.raft_log_prefix(1) + b"h": b"hard state"}


def _applied(index: int) -> bytes:
    return encode_applied(AppliedRecord(index, 1))


def engine(count: int, value: bytes = b"v" * 1000, *, applied: int = 7) -> MemoryEngine:
    """Return the engine of a node whose range holds ``count`` keys."""
    made = MemoryEngine()
    made.write({**OUTSIDE, APPLIED_KEY: _applied(applied)}, sync=True)
    made.write({keys.head_key(b"%06d" % n): value for n in range(count)}, sync=True)
    made.write({keys.mail_key(b"a"): b"m", keys.transaction_key(b"a", b"t"): b"c"}, sync=True)
    return made


def content(made: MemoryEngine) -> dict[bytes, bytes]:
    return {key: value for span in range_state.spans(made, 1) for key, value in made.iterate(*span)}


def chunks_of(made: MemoryEngine) -> list[bytes]:
    return list(range_state.open_snapshot(made, 1).chunks)


def test_a_range_moves_whole_and_nothing_else_does() -> None:
    source, target = engine(3000), engine(1500, b"old")
    target.write({keys.head_key(b"only here"): b"x", OTHER_RANGE: b"theirs"}, sync=True)
    for piece in range_state.install(target, 1, chunks_of(source)):
        target.write(piece, sync=False)
    assert content(target) == content(source)
    assert {key: target.get(key) for key in OUTSIDE} == OUTSIDE
    assert target.get(OTHER_RANGE) == b"theirs"


OTHER_RANGE = keys.record_key(2, "applied")
COPIES = {
    keys.record_key(1, RIGHT_HALF_RECORD): keys.u64(3),
    keys.queue_prefix(3, 1) + b"of a right half": b"copy",
    keys.queue_counters_key(3, 1): b"counters",
}


def test_the_metadata_of_a_right_half_that_is_prepared_moves_with_its_range() -> None:
    source, target = engine(10), engine(10, b"old")
    source.write({**COPIES, OTHER_RANGE: b"not ours"}, sync=True)
    target.write({keys.queue_prefix(3, 2) + b"of before": b"old"}, sync=True)
    chunks = chunks_of(source)
    assert all(range_state.is_chunk(1, chunk) for chunk in chunks)
    for piece in range_state.install(target, 1, chunks):
        target.write(piece, sync=False)
    assert content(target) == content(source)
    assert {key: target.get(key) for key in COPIES} == COPIES
    assert target.get(keys.queue_prefix(3, 2) + b"of before") is None
    assert target.get(OTHER_RANGE) is None
    for piece in range_state.install(target, 1, chunks_of(engine(10))):
        target.write(piece, sync=False)
    assert not any(map(target.get, COPIES))


def test_a_right_half_may_have_an_id_below_that_of_its_range() -> None:
    copies = {
        keys.record_key(1, RIGHT_HALF_RECORD): keys.u64(0),
        keys.queue_prefix(0, 1) + b"of a right half": b"copy",
    }
    source, target = engine(10), engine(10, b"old")
    source.write(copies, sync=True)
    chunks = chunks_of(source)
    assert all(range_state.is_chunk(1, chunk) for chunk in chunks)
    for piece in range_state.install(target, 1, chunks):
        target.write(piece, sync=False)
    assert {key: target.get(key) for key in copies} == copies


def test_the_metadata_of_a_right_half_that_is_prepared_is_cleared_with_its_range() -> None:
    source = engine(10)
    source.write({**COPIES, OTHER_RANGE: b"theirs"}, sync=True)
    for piece in range_state.clear(source, 1, [(b"", None)]):
        source.write(piece, sync=False)
    assert not content(source)
    assert not any(map(source.get, COPIES))
    assert source.get(OTHER_RANGE) == b"theirs"


def test_a_snapshot_with_metadata_of_a_range_that_it_does_not_tell_is_refused() -> None:
    source, target = engine(10), engine(0)
    chunks = [*chunks_of(source), msgspec.msgpack.encode([(keys.queue_prefix(3, 1), b"foreign")])]
    with pytest.raises(StoreCorrupted, match="does not contain"):
        list(range_state.install(target, 1, chunks))


def test_a_snapshot_is_of_one_moment_and_knows_its_index() -> None:
    source = engine(1000)
    before = content(source)
    taken = range_state.open_snapshot(source, 1)
    source.write({APPLIED_KEY: _applied(8), keys.head_key(b"000001"): None}, sync=True)
    assert taken.index == 7
    pairs = [pair for chunk in taken.chunks for pair in msgspec.msgpack.decode(chunk)]
    assert dict(pairs) == before


def test_chunks_and_pieces_are_small() -> None:
    source = engine(5000)
    chunks = chunks_of(source)
    assert len(chunks) > 15
    assert max(map(len, chunks)) <= range_state.CHUNK_BYTES * 1.1
    target = engine(5000)
    for piece in range_state.install(target, 1, iter(chunks)):
        size = sum(len(key) + len(value or b"") for key, value in piece.items())
        assert size <= range_state.PIECE_BYTES * 1.1
        target.write(piece, sync=False)


def test_a_pair_larger_than_a_chunk_goes_alone() -> None:
    """A reap of many messages leaves one record of them all."""
    source = engine(3, b"x" * (6 * 1024 * 1024))
    chunks = chunks_of(source)
    assert all(range_state.is_chunk(1, chunk) and len(chunk) <= CHUNK_BYTES_MAX for chunk in chunks)
    assert max(map(len, chunks)) < 6 * 1024 * 1024 + 1000


def test_an_installation_is_repeated_from_any_point() -> None:
    source = engine(3000)
    chunks = chunks_of(source)
    pieces = len(list(range_state.install(engine(0), 1, chunks))) + 2
    for done in range(pieces):
        target = engine(2000, b"old" * 300)
        steps = range_state.install(target, 1, chunks)
        for _, piece in zip(range(done), steps, strict=False):
            target.write(piece, sync=False)
        for piece in range_state.install(target, 1, chunks):
            target.write(piece, sync=False)
        assert content(target) == content(source)


def test_records_are_there_all_the_time() -> None:
    """A node that is started in between must know with whom it shares the range."""
    nodes, extra = keys.record_key(1, "nodes"), keys.record_key(1, "of old")
    source, target = engine(3000, applied=9), engine(2000, b"old" * 300)
    source.write({nodes: b"new"}, sync=True)
    target.write({nodes: b"old", extra: b"old"}, sync=True)
    for piece in range_state.install(target, 1, chunks_of(source)):
        target.write(piece, sync=False)
        assert target.get(nodes) in (b"old", b"new")
        assert target.get(APPLIED_KEY) in (_applied(7), _applied(9))
    assert (target.get(nodes), target.get(extra)) == (b"new", None)
    assert content(target) == content(source)


def test_chunks_are_read_only_when_they_are_wanted() -> None:
    source, read = engine(5000), []

    def watched() -> object:
        for number, chunk in enumerate(chunks_of(source)):
            read.append(number)
            yield chunk

    steps = range_state.install(engine(0), 1, watched())  # type: ignore[arg-type]
    next(steps)
    assert read == []
    next(steps)
    next(steps)
    assert 0 < len(read) <= 2 * range_state.PIECE_BYTES // range_state.CHUNK_BYTES + 2


def test_an_empty_range_is_a_range() -> None:
    source, target = MemoryEngine(), engine(10)
    chunks = [*range_state.open_snapshot(source, 1).chunks, b""]
    for piece in range_state.install(target, 1, chunks):
        target.write(piece, sync=False)
    assert content(target) == {}


def test_closing_lets_go_of_the_engine_snapshot_begun_or_not() -> None:
    for begun in (False, True):
        source, closed = engine(1), []
        frozen = source.snapshot()
        frozen.close = lambda closed=closed: closed.append(1)  # type: ignore[method-assign, misc]
        source.snapshot = lambda frozen=frozen: frozen  # type: ignore[method-assign, misc]
        taken = range_state.open_snapshot(source, 1)
        if begun:
            next(taken.chunks)
        taken.close()
        assert closed


INSIDE = keys.head_key(b"k")


@pytest.mark.parametrize(
    "pairs",
    [
        [(keys.store_key("store"), b"another node")],
        [(keys.raft_log_prefix(1) + b"h", b"another term")],
        [(keys.record_key(2, "applied"), b"another range")],
        [(keys.STAGED_END, b"past the end")],
        [(INSIDE, b"1"), (INSIDE, b"2")],
        [(INSIDE + b"2", b"1"), (INSIDE, b"2")],
        [(INSIDE, None)],
        [(INSIDE, 1)],
        {"a": 1},
        "text",
    ],
)
def test_pairs_outside_the_range_are_no_chunk(pairs: object) -> None:
    assert not range_state.is_chunk(1, msgspec.msgpack.encode(pairs))


@given(st.binary(min_size=1, max_size=60))
def test_random_bytes_are_no_chunk(data: bytes) -> None:
    assert not range_state.is_chunk(1, data) or msgspec.msgpack.decode(data) == []
