"""The conservation of messages: enqueued = delivered + executed + pending + dead.

The equation holds at any timestamp. Every proposal that moves a message changes the counters of its
range with the same entry, so a reader never sees another state. *pending* is counted by
itself, not derived, so that the equation can fail. It is checked before each proposal is sent; a
proposal that would break it is never sent.

*pending* also tells the services whether an outbox has entries, so they would miss an entry that is
not counted. If an outbox is empty although its counter says otherwise, that is reported.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv.engine import Reader
from postroom.messaging.requests import Counters, ReadCounters
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry
from postroom.ranges.state import read_applied

_astuple = msgspec.structs.astuple
_INDEXES: Final = {name: index for index, name in enumerate(Counters.__struct_fields__)}
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Counters)


def read_counters(stored: Reader, range_id: int) -> Counters:
    """Return the counters of a range, as ``stored`` has them."""
    sums = read_applied(stored, range_id).sums
    return _decoder.decode(sums) if sums else Counters()


class Conservation:
    """The counters of one range, as applied, in the leaseholder's memory.

    They are the sums in the range's applied record (:mod:`postroom.ranges.state`).
    """

    def __init__(self, range_id: int) -> None:
        self._range_id = range_id
        self.applied = Counters()

    def register(self, registry: Registry) -> None:
        """Register the read of the counters."""
        registry.reads[ReadCounters] = lambda _, __: self.applied

    def restart(self, stored: Reader) -> None:
        """Read the stored counters."""
        self.applied = read_counters(stored, self._range_id)

    def finish(self, ctx: Evaluation) -> None:
        """Add the proposal's tally to the stored counters.

        Raises:
            StoreCorrupted: messages would be lost or made up.
        """
        tally = ctx.tally
        counted = list(_astuple(self.applied))
        for name in tally:
            counted[_INDEXES[name]] += tally[name]
        after = Counters(*counted)
        if not after.conserved():
            raise StoreCorrupted(
                f"messages would be lost or made up ({self.applied} would become {after}); "
                "the proposal was stopped and nothing was changed: please report this"
            )
        ctx.sums = _encode(after)
        ctx.after.append(partial(setattr, self, "applied", after))
