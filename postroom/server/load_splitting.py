"""The splits by load: a node splits a range that takes much of its processor, for ten seconds.

::

    every 5 s: seconds of the processor, samples ─▶ loads ─┬─ twice above `split-load`?
                                                           └─ a key that halves it? ─▶ PrepareSplit

The setting ``split-load`` is one of the store, in parts of a processor; at 0 nothing is measured.
A node that has hardly anything to do takes no samples. A range is left alone in these cases:

* It has changed within the last two looks: the samples of before do not count.
* No key halves its load. It is looked at again, which costs little.
* The cluster has only one node, or eight ranges for each node: more would only cost.
* It has refused to be split, for ten minutes, or keeps a trail for backups.

The lease of the right half goes to another node when leases are spread (:mod:`.lease_spreading`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from postroom.errors import CommitUnknown, Invalid, Retryable, shorten
from postroom.limits import LOAD_SPLIT_RANGES_MAX
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.ports import Onlooker
from postroom.ranges.settings import SPLIT_LOAD, SettingsInForce
from postroom.ranges.split.by_load import Load, Loads, Sampler, key_that_halves, loads
from postroom.ranges.split.by_size import REFUSED_SECONDS
from postroom.ranges.split.requests import PrepareSplit
from postroom.server.hosted_range import HostedRange
from postroom.server.range_calls import RangeCalls
from postroom.server.replicas import Replicas
from postroom.server.services import NodeTasks, WakeUp

LOOK_SECONDS: Final = 5.0
"""The time from one look to the next. A load counts that is seen in two of them."""
BURST_SECONDS: Final = 0.25
"""The mean time from one burst of samples to the next."""
BUSY_CORES: Final = 0.05
"""The part of a processor from which on a node takes samples."""

_log: Final = logging.getLogger(__name__)


class LoadedNode(Protocol):
    """The node, as the service sees it."""

    tasks: NodeTasks
    replicas: Replicas
    calls: RangeCalls
    settings: SettingsInForce
    onlookers: list[Onlooker]
    chance: Callable[[], float]


class LoadSplitting:
    """The service of a node that splits ranges by their loads; see the module.

    Attributes:
        wake_up: the wake-up that the setting has changed.
        processor_seconds: returns the seconds of a processor that the thread of the node has taken.
    """

    def __init__(self, node: LoadedNode) -> None:
        self._node = node
        self._sampler = Sampler(node.onlookers, node.chance)
        self._before: Loads = {}
        self._now: Loads | None = None
        self._is_busy = False
        self._refused: dict[int, float] = {}
        self.wake_up = WakeUp(node.tasks)
        self.processor_seconds: Callable[[], float] = lambda: 0.0

    def cores_of(self, descriptor: RangeDescriptor) -> float | None:
        """Return the part of a processor that a range takes; ``None``: it is not measured."""
        if self._now is None:
            return None
        found = self._now.get(descriptor)
        return 0.0 if found is None else round(found.cores, 2)

    async def run(self) -> None:
        """Look at the loads, for ever."""
        try:
            while True:
                if self._node.settings[SPLIT_LOAD]:
                    await self._measure()
                    await self.look()
                else:
                    self._before, self._now = {}, None
                    self._sampler.stop()
                    await self.wake_up.wait()
        finally:
            self._sampler.stop()

    async def _measure(self) -> None:
        tasks, monotonic = self._node.tasks, self._node.tasks.monotonic
        began, before = monotonic(), self.processor_seconds()
        while (passed := monotonic() - began) < LOOK_SECONDS:
            if self._is_busy:
                self._sampler.begin_burst()
                await tasks.sleep(2 * BURST_SECONDS * self._node.chance())
            else:
                await tasks.sleep(LOOK_SECONDS)
        cores = (self.processor_seconds() - before) / passed
        self._is_busy = cores >= BUSY_CORES
        self._before, self._now = self._now or {}, loads(self._sampler.take(), cores)

    async def look(self) -> None:
        """Begin to split the ranges whose loads were too high in both of the last looks."""
        cores_max = self._node.settings[SPLIT_LOAD]
        for descriptor, load in (self._now or {}).items():
            before = self._before.get(descriptor)
            if before is not None and min(before.cores, load.cores) > cores_max:
                await self._split(descriptor, Load(load.cores, before.keys + load.keys))

    async def _split(self, descriptor: RangeDescriptor, load: Load) -> None:
        hosted = self._node.replicas.hosted.get(descriptor.range_id)
        if hosted is None or not self._may_split(hosted, descriptor):
            return
        key = key_that_halves(load.keys)
        if key is None:
            return
        _log.info(
            "range %d takes %.2f of a processor: it is to be split at %s",
            hosted.range_id, load.cores, shorten(key),
        )  # fmt: skip
        try:
            await hosted.upkeep(PrepareSplit(key, await self._node.calls.new_range_id()))
        except (Retryable, CommitUnknown) as error:
            _log.debug("a split by load is tried again: %s", error)
        except Invalid as error:
            self._refused[hosted.range_id] = self._node.tasks.monotonic() + REFUSED_SECONDS
            _log.warning("range %d is not split by its load: %s", hosted.range_id, error)

    def _may_split(self, hosted: HostedRange, descriptor: RangeDescriptor) -> bool:
        replica, now = hosted.replica, self._node.tasks.monotonic()
        self._refused = {each: end for each, end in self._refused.items() if end > now}
        nodes = len({*hosted.group.members, *hosted.group.learners})
        return (
            replica.serves
            and replica.bounds.descriptor == descriptor
            and not replica.listing.splitting()
            and not replica.registry.is_recorded
            and hosted.range_id not in self._refused
            and nodes > 1
            and self._ranges() < LOAD_SPLIT_RANGES_MAX * nodes
        )

    def _ranges(self) -> int:
        """Return the number of the ranges, with the halves that are being split off."""
        hosted = self._node.replicas.hosted.values()
        return len(hosted) + sum(each.replica.listing.splitting() for each in hosted)
