"""The splits by size: a range that holds more than so many bytes is split in the middle.

::

    a new cluster ───────────────── FOUNDING: 512 MiB ─┐
    postroom serve --split-bytes ── of an older store ─┤
    postroom settings set split-bytes ─ ChangeSetting ─┴▶ 03 <root> 05 "settings"

    leaseholder of a range ── it has grown: too large? ─▶ key in the middle, new id ─▶ PrepareSplit

The setting is one of the store (:mod:`postroom.ranges.settings`). At 0, and if it was never made,
no range is split by its size.

A split that fails is tried again with the same id: the node may not know yet that it was given out.

Sizes are the engine's estimates (:mod:`postroom.ranges.partitions`). A range whose bytes lie under
one key is not split. It is left alone for ten minutes, like one that refuses to be split. A range
that keeps a trail for backups is not split, since that would end the trail.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.errors import CommitUnknown, Invalid, Retryable
from postroom.kv.engine import Engine
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.partitions import cuts
from postroom.ranges.ports import ServiceWakeUp
from postroom.ranges.settings import SPLIT_BYTES, ChangeSetting, SettingsInForce
from postroom.ranges.split.preparing import Preparing
from postroom.ranges.split.requests import PrepareSplit

RETRY_SECONDS: Final = 10.0
REFUSED_SECONDS: Final = 600.0
"""The time for which a range is left alone that cannot be split."""

_log: Final = logging.getLogger(__name__)


def key_to_split(engine: Engine, bounds: Bounds, bytes_max: int) -> bytes | None:
    """Return the key in the middle of a range that is too large; ``None``: it is not too large.

    Args:
        engine: the engine of the node.
        bounds: the bounds of the range.
        bytes_max: the bytes that the range may hold; 0: any number.

    Raises:
        Invalid: it has no key at which it can be split.
    """
    held = engine.approximate_bytes(*bounds.data) if bytes_max else 0
    if held <= bytes_max:
        return None
    found = [cut for cut in cuts(engine, bounds.data, held // 2) if isinstance(cut, bytes)]
    if not found or found[0] <= bounds.start:
        raise Invalid(f"nearly all of its {held:,} bytes lie under one key")
    return found[0]


@dataclass(eq=False)
class SizeSplits:
    """The service of one range that splits it by its size.

    Attributes:
        stored: the engine of the node.
        bounds: the bounds of the range.
        preparing: the split that is prepared.
        send: a function that sends a request to the range, as upkeep.
        new_id: a function that asks the root for an id that no range has had.
        sleep: a function that waits for a number of seconds.
        wake_up: the wake-up that the range may have grown, or that the setting has changed.
        settings: the settings in force.
        first_words: the settings of the store that this node makes if there are none yet.
    """

    stored: Engine
    bounds: Bounds
    preparing: Preparing
    send: Callable[[Any], Awaitable[Any]]
    new_id: Callable[[], Awaitable[int]]
    sleep: Callable[[float], Awaitable[None]]
    wake_up: ServiceWakeUp
    settings: SettingsInForce
    first_words: Mapping[str, float]
    _id: int | None = field(default=None, init=False)

    async def run(self) -> None:
        """Look at the size, for ever."""
        while True:
            pause = math.inf
            try:
                await self._tell_first_words()
                await self.look()
            except CommitUnknown:
                pause, self._id = RETRY_SECONDS, None
            except Retryable as error:
                _log.debug("a split by size is tried again: %s", error)
                pause = RETRY_SECONDS
            except Invalid as error:
                self._id = None
                _log.warning(
                    "range %d is larger than ranges are to be, and is not split: %s",
                    self.bounds.descriptor.range_id, error,
                )  # fmt: skip
                await self.sleep(REFUSED_SECONDS)
            await self.wake_up.wait(pause)

    async def _tell_first_words(self) -> None:
        """Make the settings of this node those of the store, if it has none."""
        is_root = self.bounds.descriptor.range_id == ROOT_ID
        for name, value in self.first_words.items() if is_root else ():
            if name not in self.settings:
                await self.send(ChangeSetting(name, value, is_default=True))

    async def look(self) -> None:
        """Begin a split if the range is too large.

        Raises:
            Invalid: the range refuses.
            Retryable, CommitUnknown: it may be tried again.
        """
        bytes_max = int(self.settings[SPLIT_BYTES])
        if not bytes_max or not self.preparing.may_begin_unasked():
            return
        key = key_to_split(self.stored, self.bounds, bytes_max)
        if key is not None:
            self._id = self._id or await self.new_id()
            await self.send(PrepareSplit(key, self._id))
            self._id = None
