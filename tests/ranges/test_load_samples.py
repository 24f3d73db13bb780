"""The samples of requests that tell the loads of ranges, and the keys that halve these loads."""

from __future__ import annotations

from collections import Counter
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.limits import LOAD_SAMPLES_MAX, LOAD_SAMPLES_MIN
from postroom.messaging.queues.requests import Acknowledge, Attempt, EnqueueInQueue
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import Call
from postroom.ranges.contract import Request
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.ports import Onlooker
from postroom.ranges.requests import CommitTransaction, Get, Now, Put, Scan
from postroom.ranges.split.by_load import (
    BURST_REQUESTS,
    Load,
    Sample,
    Sampler,
    key_that_halves,
    keys_within,
    loads,
)

RANGE = RangeDescriptor(7, b"b", b"y", 3)
OTHER = RangeDescriptor(8, b"y", None, 3)
COMMIT = CommitTransaction(bytes(16), 1, 60.0, 0, b"c", [], [], [])


class Seen:
    """A range whose requests are seen."""

    def __init__(self, descriptor: RangeDescriptor) -> None:
        self.bounds = Bounds(descriptor)
        self.group: Any = None


class Requests:
    """A node whose requests are seen by its onlookers."""

    def __init__(self) -> None:
        self.onlookers: list[Onlooker] = []
        self.sampler = Sampler(self.onlookers, Random(1).random)
        self.looks = 0

    def come(self, *keys: bytes, at: RangeDescriptor = RANGE) -> None:
        """Have a request come for each key."""
        for key in keys:
            call = Call(Get(key))
            for see in (*self.onlookers,):
                self.looks += 1
                assert see(Seen(at), call) is call


def commit(*writes: Request, reads: tuple[bytes, ...] = ()) -> CommitTransaction[Any]:
    """Return a commit of writes."""
    return msgspec.structs.replace(COMMIT, writes=[*writes], reads=[*reads])


def message(key: bytes, group: str = "") -> EnqueueInQueue:
    """Return a message for a queue."""
    return EnqueueInQueue("queue", key, "kind", b"id-is-d", b"", group=group, is_unique=True)


@pytest.mark.parametrize(
    ("request_", "keys"),
    [
        (Get(b"k"), [b"k"]),
        (Get(b"z"), []),
        (Scan(b"c", b"d", 0, 1, 1), [b"c"]),
        (Scan(b"a", None, 0, 1, 1), []),
        (Scan(b"b", None, 0, 1, 1), []),
        (Now(), []),
        (commit(Put(b"d", b""), Put(b"z", b""), reads=(b"e",)), [b"e", b"d"]),
        (commit(message(b"k")), [b"k"]),
        (commit(message(b"k", "group")), [b"group"]),
        (commit(Acknowledge("queue", [Attempt(b"m", "", b"1")])), [b"m"]),
    ],
)
def test_a_request_works_at_its_keys_and_at_the_homes_of_messages(
    request_: Request, keys: list[bytes]
) -> None:
    assert keys_within(Bounds(RANGE), request_) == keys


def test_a_request_is_seen_only_in_a_burst() -> None:
    requests = Requests()
    requests.come(*[b"k"] * 1000)
    assert requests.looks == 0
    requests.sampler.begin_burst()
    requests.come(*[b"k"] * 1000)
    assert requests.looks == BURST_REQUESTS
    assert requests.sampler.take() == [Sample(RANGE, b"k")] * BURST_REQUESTS
    requests.sampler.begin_burst()
    requests.come(b"k")
    requests.sampler.begin_burst()  # before the end of the last one
    requests.come(*[b"k"] * 1000)
    assert requests.looks == 2 * BURST_REQUESTS + 1
    requests.sampler.begin_burst()
    requests.sampler.stop()
    requests.sampler.stop()
    assert requests.onlookers == []


def test_samples_are_bounded_and_each_is_as_likely_as_the_others() -> None:
    requests, early = Requests(), Counter[bool]()
    for _ in range(20):
        for number in range(4 * LOAD_SAMPLES_MAX // BURST_REQUESTS):
            requests.sampler.begin_burst()
            requests.come(*[b"k%04d" % number] * BURST_REQUESTS)
        samples = requests.sampler.take()
        assert len(samples) == LOAD_SAMPLES_MAX
        half = b"k%04d" % (2 * LOAD_SAMPLES_MAX // BURST_REQUESTS)
        early.update(sample.key is not None and sample.key < half for sample in samples)
    assert 0.45 < early[True] / early.total() < 0.55


def test_the_load_of_a_range_is_its_part_of_the_samples() -> None:
    samples = [Sample(RANGE, b"k")] * 30 + [Sample(OTHER, None)] * 10
    assert loads(samples, 0.8) == {
        RANGE: Load(pytest.approx(0.6), (b"k",) * 30),
        OTHER: Load(pytest.approx(0.2), (None,) * 10),
    }
    assert loads(samples[: LOAD_SAMPLES_MIN - 1], 0.8) == {}
    assert loads([], 0.8) == {}


@pytest.mark.parametrize(
    ("sampled", "key"),
    [
        ([], None),
        ([b"k"] * 100, None),
        ([None] * 100, None),
        ([b"k"] * 90 + [b"a"] * 5 + [b"z"] * 5, None),
        ([b"k"] * 60 + [b"a"] * 40, b"k"),
        ([b"a"] * 60 + [b"k"] * 40, b"k"),
        ([b"a", b"b", b"c", b"d"] * 10, b"c"),
        ([b"a", b"k"] * 20 + [None] * 60, None),
        ([b"a", b"k"] * 20 + [None] * 20, b"k"),
    ],
)
def test_a_key_halves_a_load_if_each_side_keeps_a_quarter_of_it(
    sampled: list[bytes | None], key: bytes | None
) -> None:
    assert key_that_halves(sampled) == key
    assert key_that_halves(sampled[::-1]) == key


@given(st.lists(st.none() | st.binary(max_size=2), max_size=60))
def test_a_key_is_found_if_there_is_one_and_no_other_is_better(
    sampled: list[bytes | None],
) -> None:
    def smaller(key: bytes) -> int:
        left = sum(each is not None and each < key for each in sampled)
        return min(left, sum(each is not None and each >= key for each in sampled))

    best = max((smaller(key) for key in sampled if key is not None), default=0)
    found = key_that_halves(sampled)
    if found is None:
        assert best < max(len(sampled) / 4, 1)
    else:
        assert smaller(found) == best >= len(sampled) / 4
