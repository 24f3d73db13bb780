"""The bounds of a range: the keys within them, their engine keys, and the requests about others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.kv import keys
from postroom.kv.memory import MemoryEngine
from postroom.messaging.requests import EnqueueMessage
from postroom.protocol.requests import REQUESTS, name_of
from postroom.ranges.bounds import Bounds, WrongRange
from postroom.ranges.contract import KeySet, RangeIds
from postroom.ranges.descriptor import (
    RangeDescriptor,
    descriptor_key,
    encode_descriptor,
    read_descriptor,
)
from postroom.ranges.requests import (
    Accounting,
    CommitTransaction,
    DeleteRange,
    Get,
    Increment,
    Put,
)
from postroom.ranges.transactions.requests import Ballot, Prepare
from tests.messaging.one_range import Asked
from tests.protocol.test_contract import sample
from tests.ranges.neighbours import LONGEST, ODD_KEYS

odd_keys = st.sampled_from(ODD_KEYS) | st.binary(max_size=4) | st.just(LONGEST)
spans = st.tuples(odd_keys, odd_keys | st.none())


def bounds(start: bytes = b"", end: bytes | None = None) -> Bounds:
    return Bounds(RangeDescriptor(7, start, end))


def engine_keys(key: bytes) -> Iterator[bytes]:
    """Yield an engine key of each kind that lies under a user key."""
    yield keys.transaction_key(key, b"t" * 16)
    yield keys.mail_key(key)
    for suffix in range(1, 11):
        span = keys.suffix_span(key, bytes((suffix,)))
        yield span.lower
        yield span.lower + b"\xff" * 20


@given(odd_keys, spans)
def test_a_key_is_within_the_bounds_if_all_of_its_engine_keys_are(
    key: bytes, span: tuple[bytes, bytes | None]
) -> None:
    start, end = span
    own = bounds(start, end)
    is_within = start <= key and (end is None or key < end)
    assert own.contains(key) == is_within
    assert {own.contains_engine_key(raw) for raw in engine_keys(key)} == {is_within}


@given(odd_keys, st.sets(odd_keys, min_size=1, max_size=4))
def test_each_key_is_within_one_of_the_ranges_of_a_store(key: bytes, cuts: set[bytes]) -> None:
    edges: list[Any] = [b"", *sorted(cuts - {b""}), None]
    ranges = [bounds(*span) for span in pairwise(edges)]
    assert sum(each.contains(key) for each in ranges) == 1
    for raw in engine_keys(key):
        assert sum(each.contains_engine_key(raw) for each in ranges) == 1
    for before, after in pairwise(ranges):
        for left, right in zip(before.spans, after.spans, strict=True):
            assert left.upper == right.lower


@given(spans, spans)
def test_a_span_is_clipped_to_the_keys_that_are_within_the_bounds(
    own: tuple[bytes, bytes | None], asked: tuple[bytes, bytes | None]
) -> None:
    mine, other = bounds(*own), bounds(*asked)
    clipped = bounds(*mine.clip(*asked))
    for key in (*ODD_KEYS, own[0], asked[0], asked[0] + b"\x00"):
        assert clipped.contains(key) == (mine.contains(key) and other.contains(key))
    is_empty = asked[1] is not None and asked[1] <= asked[0]
    assert mine.contains_span(*asked) == (is_empty or mine.clip(*asked) == asked)


def test_a_range_that_was_never_split_contains_every_key() -> None:
    engine = MemoryEngine()
    own = Bounds(read_descriptor(engine, 1))
    assert own.is_whole
    assert own.descriptor.generation == 1
    ends = [keys.MAIL, keys.DATA, keys.DATA_END]
    ends += [keys.after_prefix(keys.STAGED + each) for each in keys.STAGED_SUBSPACES]
    assert [span.upper for span in own.spans] == ends
    assert all(own.contains(key) for key in ODD_KEYS)


def test_a_replica_that_holds_nothing_yet_contains_no_key() -> None:
    """Otherwise it would take the keys of its neighbours for its own."""
    own = Bounds(read_descriptor(MemoryEngine(), 2))
    assert not own.is_whole
    assert not any(own.contains(key) for key in ODD_KEYS)
    assert not any(own.contains_engine_key(raw) for key in ODD_KEYS for raw in engine_keys(key))
    assert not own.contains_span(b"", None)


def test_a_stored_descriptor_is_read_again() -> None:
    engine = MemoryEngine()
    descriptor = RangeDescriptor(3, b"a\x00", LONGEST, 9)
    engine.write({descriptor_key(3): encode_descriptor(descriptor)}, sync=True)
    assert read_descriptor(engine, 3) == descriptor


def keys_told(request: Any) -> KeySet:
    """Return the keys and spans that a request concerns."""
    sets = [each for each in request.participants() if isinstance(each, KeySet)]
    return KeySet(
        tuple(key for each in sets for key in each.keys),
        tuple(span for each in sets for span in each.spans),
    )


@pytest.mark.parametrize("kind", REQUESTS.all, ids=name_of)
def test_a_request_is_refused_if_a_part_of_what_it_concerns_is_elsewhere(kind: type[Any]) -> None:
    request = sample(kind)
    told = keys_told(request)
    edges = [*told.keys, *(start for start, _ in told.spans)]
    ends = [*(key + b"\x00" for key in told.keys), *(end for _, end in told.spans)]
    if isinstance(request.concerns(), RangeIds):
        assert isinstance(bounds().refusal(request), WrongRange), "it names other ranges"
        return
    assert bounds().refusal(request) is None
    if not edges:
        assert bounds(b"", b"").refusal(request) is None, "it goes by another rule than keys"
        return
    first, last = min(edges), max(end or LONGEST for end in ends)
    assert bounds(first, None if None in ends else last).refusal(request) is None
    assert isinstance(bounds(first + b"\x00").refusal(request), WrongRange)
    if None not in ends:
        assert isinstance(bounds(first, last[:-1]).refusal(request), WrongRange)


commits = st.builds(
    CommitTransaction, st.just(b"t" * 16), st.just(0), st.just(60.0), st.just(0), odd_keys,
    st.lists(odd_keys, max_size=2), st.lists(spans, max_size=1),
    st.lists(
        st.builds(Put, odd_keys, st.just(b""))
        | st.builds(Increment, odd_keys)
        | st.builds(Accounting, odd_keys, st.just({"bytes": 1}))
        | st.builds(EnqueueMessage, odd_keys, st.just(b""))
        | st.builds(DeleteRange, odd_keys, odd_keys | st.none()),
        max_size=3,
    ),
)  # fmt: skip


preparations = st.builds(
    Prepare, st.just(b"t" * 16), st.just(Ballot(1, 1, 1)), odd_keys, st.just(0), st.just(0),
    st.lists(odd_keys, max_size=2), st.lists(spans, max_size=1),
    st.lists(
        st.builds(Put, odd_keys, st.just(b"")) | st.builds(DeleteRange, odd_keys, odd_keys),
        max_size=3,
    ),
)  # fmt: skip


@given(spans, commits | preparations | st.builds(Get, odd_keys))
def test_single_keys_tell_of_a_request_what_its_participants_do(
    span: tuple[bytes, bytes | None], request: Any
) -> None:
    own = bounds(*span)
    contains_all = all(map(own.contains_all, request.participants()))
    assert (own.refusal(request) is None) == contains_all


@pytest.mark.parametrize(("read", "written"), [(b"b", b"z"), (b"z", b"b")])
def test_a_preparation_is_refused_if_a_read_or_a_write_is_elsewhere(
    read: bytes, written: bytes
) -> None:
    prepare = Prepare(b"t" * 16, Ballot(1, 1, 1), b"anchor", 0, 0, [read], [], [Put(written, b"")])
    assert bounds(b"b").refusal(prepare) is None
    assert isinstance(bounds(b"b", b"z").refusal(prepare), WrongRange)
    assert isinstance(bounds(b"c").refusal(prepare), WrongRange)


def test_a_call_is_looked_at_again_when_the_bounds_have_changed() -> None:
    own, call = bounds(b"a", b"m"), Asked(Get(b"k"))
    assert own.refusal_of(call) is None
    assert call.within is own.descriptor
    own.take(RangeDescriptor(7, b"a", b"f", generation=2))
    assert own.refusal_of(call) is not None


def test_a_thread_never_sees_the_descriptor_of_later_bounds_with_the_bounds_before() -> None:
    own, seen = bounds(b"a", b"m"), list[RangeDescriptor]()

    class LaterDescriptor(NamedTuple):
        start: bytes

        @property
        def end(self) -> bytes:
            seen.append(own.descriptor)
            return b"f"

    before = own.descriptor
    own.take(LaterDescriptor(b"a"))  # type: ignore[arg-type]  # one that looks meanwhile
    assert seen == [before]


def test_a_refusal_names_the_descriptor_and_is_tried_again() -> None:
    own = bounds(b"a", b"b")
    request = CommitTransaction(b"t" * 16, 0, 1.0, 0, b"a", [b"a", b"b"], [], [])
    refusal = own.refusal(request)
    assert refusal is not None
    assert refusal.descriptors == (own.descriptor,)
    with pytest.raises(WrongRange, match="nothing was changed"):
        own.check(request)
