"""Nodes that split their ranges by load: what is hot, and can be halved, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from postroom.errors import Invalid, Unavailable
from postroom.limits import LOAD_SPLIT_RANGES_MAX
from postroom.messaging.trail_requests import KeepTrail
from postroom.ranges.calls import Call
from postroom.ranges.contract import ROOT_ID, Role
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.ports import SeenRange
from postroom.ranges.requests import Get
from postroom.ranges.settings import SPLIT_LOAD, ChangeSetting
from postroom.ranges.split import by_load
from postroom.ranges.split.by_size import REFUSED_SECONDS
from postroom.server import load_splitting
from postroom.server.load_splitting import LOOK_SECONDS
from postroom.server.node import Node
from tests.client.stores import Store
from tests.remote.streams import Streams
from tests.server.hosting import ThreeNodes

KEYS = [b"key/%02d" % number for number in range(40)]
UNTIL_SPLIT = 4 * LOOK_SECONDS
"""The time within which a hot range is split: a look without samples, two with, the split."""


class Loaded:
    """Three nodes with one range, and a client that reads.

    Attributes:
        cores: the part of a processor that all requests take together, at the nodes that get them.
    """

    def __init__(self) -> None:
        self.nodes = ThreeNodes(b"")
        self.nodes.turn_seconds = 0.1
        self.nodes.lead(ROOT_ID, 1)
        self.client = Streams(self.nodes, Role.ADMIN)
        self.cores, self._at = 0.9, self.nodes.clock.seconds
        for node in self.nodes.nodes.values():
            node.load_splitting.processor_seconds = self._processor(node)
        self.keys = cycle(KEYS)
        self.say(0.5)

    def _processor(self, node: Node) -> Callable[[], float]:
        taken = 0.0

        def work(_: SeenRange, call: Call) -> Call:
            nonlocal taken
            now = self.nodes.clock.seconds
            taken, self._at = taken + (now - self._at) * self.cores, now
            return call

        node.onlookers.append(work)
        return lambda: taken

    def say(self, load: float) -> None:
        assert self.client.ask(ChangeSetting(SPLIT_LOAD, load)).value == load

    def read(self, seconds: float) -> None:
        """Read one key after the other for a time."""
        end = self.nodes.clock.seconds + seconds
        while self.nodes.clock.seconds < end:
            self.client.ask(Get(next(self.keys)))

    def ranges(self) -> list[RangeInfo]:
        found: list[RangeInfo] = self.client.ask(ListRanges(b"", None))
        hosted = self.nodes.nodes[1].replicas.hosted
        assert len(hosted) >= len(found)
        return found

    @property
    def number(self) -> int:
        """Return the number of the ranges."""
        return len(self.nodes.nodes[1].replicas.hosted)


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    made = Loaded()
    yield made
    made.nodes.close()


def test_a_hot_range_is_split_where_that_halves_its_load(loaded: Loaded) -> None:
    loaded.read(UNTIL_SPLIT)
    assert loaded.number == 2
    descriptors = [
        each.replica.bounds.descriptor for each in loaded.nodes.nodes[1].replicas.hosted.values()
    ]
    assert KEYS[9] < (descriptors[0].end or b"") < KEYS[31]
    loaded.read(UNTIL_SPLIT)  # both halves take less than half a processor now
    assert loaded.number == 2


def test_a_range_shows_its_load(loaded: Loaded) -> None:
    loaded.say(0.95)
    loaded.read(4 * LOOK_SECONDS)
    (info,) = loaded.ranges()
    assert info.load == pytest.approx(0.9, abs=0.05)
    loaded.client.pass_time(3 * LOOK_SECONDS)  # no client asks: the samples are too few
    (info,) = loaded.ranges()
    assert info.load == 0.0
    loaded.say(0)
    loaded.client.pass_time(2 * LOOK_SECONDS)
    (info,) = loaded.ranges()
    assert info.load is None


def test_one_hot_key_splits_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[bytes | None]()

    def noted(sampled: list[bytes | None]) -> bytes | None:
        tried.append(by_load.key_that_halves(sampled))
        return tried[-1]

    monkeypatch.setattr(load_splitting, "key_that_halves", noted)
    loaded.keys = cycle([b"hot"])
    loaded.read(10 * LOOK_SECONDS)
    assert loaded.number == 1
    assert 1 <= len(tried) <= 10
    assert {*tried} == {None}


def test_a_range_that_keeps_a_trail_is_not_split(loaded: Loaded) -> None:
    loaded.client.ask(KeepTrail(is_kept=True))
    loaded.read(2 * UNTIL_SPLIT)
    assert loaded.number == 1


def test_a_load_that_ends_splits_nothing(loaded: Loaded) -> None:
    loaded.read(1.9 * LOOK_SECONDS)
    loaded.client.pass_time(4 * LOOK_SECONDS)
    assert loaded.number == 1


def test_a_load_within_the_bound_splits_nothing(loaded: Loaded) -> None:
    loaded.cores = 0.45
    loaded.read(2 * UNTIL_SPLIT)
    assert loaded.number == 1


def test_a_store_that_is_told_zero_takes_no_samples_and_has_no_timer(loaded: Loaded) -> None:
    loaded.say(0)
    loaded.client.pass_time(2 * LOOK_SECONDS)
    for node in loaded.nodes.nodes.values():
        assert len(node.onlookers) == 1  # the one of this test
        assert not node.load_splitting.wake_up.has_timer
    loaded.read(UNTIL_SPLIT)
    assert loaded.number == 1


def test_ranges_are_split_up_to_eight_for_each_node(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LOAD_SPLIT_RANGES_MAX == 8
    monkeypatch.setattr(load_splitting, "LOAD_SPLIT_RANGES_MAX", 1)
    loaded.say(0.1)
    loaded.read(3 * UNTIL_SPLIT)
    assert loaded.number == 3


def test_a_half_is_not_split_before_it_was_hot_for_two_looks(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = list[float]()
    find = by_load.key_that_halves

    def noted(sampled: list[bytes | None]) -> bytes | None:
        splits.append(loaded.nodes.clock.seconds)
        return find(sampled)

    monkeypatch.setattr(load_splitting, "key_that_halves", noted)
    loaded.say(0.1)
    loaded.read(2 * UNTIL_SPLIT)
    assert loaded.number >= 3
    assert splits[1] - splits[0] >= 2 * LOOK_SECONDS


@pytest.mark.parametrize("error", [Invalid("no"), Unavailable("later")], ids=["for good", "now"])
def test_a_range_that_refuses_is_left_alone_or_tried_again(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = list[float]()

    async def refuse() -> int:
        tried.append(loaded.nodes.clock.seconds)
        raise error

    for node in loaded.nodes.nodes.values():
        monkeypatch.setattr(node.calls, "new_range_id", refuse)
    loaded.read(2 * UNTIL_SPLIT)
    assert loaded.number == 1
    assert len(tried) == 1 if isinstance(error, Invalid) else len(tried) > 1
    assert REFUSED_SECONDS > 2 * UNTIL_SPLIT


def test_a_store_of_one_node_is_not_split_by_load() -> None:
    store = Store()
    store.node.load_splitting.processor_seconds = store.clock.monotonic
    store.db.change_setting(SPLIT_LOAD, 0.1)
    for number in range(200):
        store.db.put(KEYS[number % len(KEYS)], b"")
        store.advance(0.2)
    (info,) = store.db.ranges()
    assert info.load is not None
    assert info.load > 0.1
    store.db.close()


def test_an_embedded_store_measures_nothing() -> None:
    store = Store(rests_alone=True)
    store.db.change_setting(SPLIT_LOAD, 0.1)
    store.advance(3 * LOOK_SECONDS)
    assert not store.node._load_splitting.running
    assert store.db.ranges()[0].load is None
    store.db.close()
