"""The loads of the ranges of a node, by samples of its requests, and the keys that halve them.

::

    requests ── bursts of a few, at random times ─▶ samples: (range, key) ─┐
    seconds of the processor that the node has taken ──────────────────────┴─▶ Load of each range

The load of a range is its part of the samples, of all that the node's thread has taken. It is the
part of a processor that it needs, and so an estimate: requests take different times, and a follower
works for ranges that it does not lead.

A request is seen only during a burst (``Onlooker``). At other times it costs nothing: a replica
looks if there are onlookers, which it does anyway for the log of slow calls.

A *key that halves* a load has at least a quarter of the samples on each side. There is none if one
key, or one group of a queue, has nearly all of it. Requests without a key in the range, such as
claims and scans of all of it, are on neither side: a split does not part them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from postroom.limits import LOAD_SAMPLES_MAX, LOAD_SAMPLES_MIN
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import Call
from postroom.ranges.contract import Request
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.ports import Onlooker, SeenRange

BURST_REQUESTS: Final = 16
"""The requests of one burst: few, since many that arrive together are alike."""
_LEAST_SIDE: Final = 0.25
"""The least part of a load on each side of a key that halves it."""


class Sample(NamedTuple):
    """A request that was seen: its range, and one key of its work; ``None``: it has none there."""

    range: RangeDescriptor
    key: bytes | None


class Load(NamedTuple):
    """The load of a range.

    Attributes:
        cores: the part of a processor that its requests take.
        keys: the sampled keys; ``None``: a request without one.
    """

    cores: float
    keys: tuple[bytes | None, ...]


Loads: TypeAlias = Mapping[RangeDescriptor, Load]
"""The loads of ranges, as they are now: a range that is split has another descriptor."""


class Sampler:
    """The samples of the requests of a node: a bounded part of them, each as likely as the others.

    Args:
        onlookers: the onlookers of the node, one of which it is during a burst.
        chance: the source of random numbers from 0 to 1.
    """

    def __init__(self, onlookers: list[Onlooker], chance: Callable[[], float]) -> None:
        self._onlookers = onlookers
        self._chance = chance
        self._left = self._seen = 0
        self._samples: list[Sample] = []

    def begin_burst(self) -> None:
        """See the next requests."""
        if not self._left:
            self._onlookers.append(self._see)
        self._left = BURST_REQUESTS

    def stop(self) -> None:
        """See no more requests."""
        if self._left:
            self._onlookers.remove(self._see)
            self._left = 0

    def take(self) -> list[Sample]:
        """Return the samples, and begin anew."""
        taken, self._samples, self._seen = self._samples, [], 0
        return taken

    def _see(self, at: SeenRange, call: Call) -> Call:
        self._left -= 1
        if not self._left:
            self._onlookers.remove(self._see)
        self._seen += 1
        if len(self._samples) < LOAD_SAMPLES_MAX:
            self._samples.append(self._sample(at, call.request))
        elif (number := int(self._chance() * self._seen)) < LOAD_SAMPLES_MAX:
            self._samples[number] = self._sample(at, call.request)
        return call

    def _sample(self, at: SeenRange, request: Request) -> Sample:
        found = keys_within(at.bounds, request)
        key = found[int(self._chance() * len(found))] if found else None
        return Sample(at.bounds.descriptor, key)


def keys_within(bounds: Bounds, request: Request) -> list[bytes]:
    """Return the keys of a range at which the work for a request is done.

    A span counts with its start, if that is in the range.
    """
    return [
        key
        for concern in request.works_at()
        for key in (*concern.keys, *(start for start, _ in concern.spans if start > bounds.start))
        if key and bounds.contains(key)
    ]


def loads(samples: Collection[Sample], cores: float) -> Loads:
    """Return the loads of ranges; none if there are too few samples to tell.

    Args:
        samples: the samples of some seconds.
        cores: the part of a processor that the node has taken meanwhile.
    """
    if len(samples) < LOAD_SAMPLES_MIN:
        return {}
    found = defaultdict[RangeDescriptor, list[bytes | None]](list)
    for sample in samples:
        found[sample.range].append(sample.key)
    return {
        descriptor: Load(cores * len(sampled) / len(samples), tuple(sampled))
        for descriptor, sampled in found.items()
    }


def key_that_halves(sampled: Iterable[bytes | None]) -> bytes | None:
    """Return the key that parts a load best; ``None``: none leaves enough on each side.

    Args:
        sampled: the keys of the samples; ``None``: a request without one.
    """
    every = list(sampled)
    keyed = sorted(key for key in every if key is not None)
    best, least = None, _LEAST_SIDE * len(every)
    for key in dict.fromkeys(keyed):
        left = bisect_left(keyed, key)
        smaller = min(left, len(keyed) - left)
        if smaller >= max(least, 1):
            best, least = key, smaller + 1
    return best
