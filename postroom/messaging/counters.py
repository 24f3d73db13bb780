"""Conservation: enqueued = delivered + executed + pending + dead, at any timestamp.

Every proposal that moves a message changes the counters of its range in the same raw write set, so
the equation holds in every state that anybody can see. *pending* is counted by itself, not
derived, so that the equation can fail: it is checked before each proposal leaves, and a proposal
that would break it never does. *pending* also tells the services whether an outbox holds anything,
so they would miss what it does not count; an outbox that is empty although it says otherwise is
reported.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.requests import ReadCounters
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry

COUNTERS_RECORD: Final = "messages"


class Counters(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many messages a range has seen, by what became of them.

    Attributes:
        enqueued: committed with a transaction; deliverable and executable together.
        delivered: reached their inbox.
        executed: carried out.
        pending_messages: deliverable ones still in the outbox; scheduled ones included.
        pending_updates: executable ones, likewise.
        dead: became dead letters, less those replayed since.
        discarded: of the dead ones, those given up for good.
        reaped: of the delivered ones, those consumed.
        cancelled: of the discarded ones, those cancelled before their time.
    """

    enqueued: int = 0
    delivered: int = 0
    executed: int = 0
    pending_messages: int = 0
    pending_updates: int = 0
    dead: int = 0
    discarded: int = 0
    reaped: int = 0
    cancelled: int = 0

    @property
    def pending(self) -> int:
        """All that is still in an outbox."""
        return self.pending_messages + self.pending_updates

    @property
    def dead_letters(self) -> int:
        """Of the dead ones, those that wait to be replayed or discarded."""
        return self.dead - self.discarded

    def conserved(self) -> bool:
        """Whether nothing is lost and nothing came from nowhere."""
        gone = self.delivered + self.executed + self.dead
        pending = self.pending_messages + self.pending_updates
        return self.enqueued == gone + pending and min(_astuple(self)) >= 0


_astuple = msgspec.structs.astuple
_PLACES: Final = {name: place for place, name in enumerate(Counters.__struct_fields__)}
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Counters)


class Conservation:
    """Keeps the counters of one range; the leaseholder remembers them as applied."""

    def __init__(self, range_id: int) -> None:
        self._record = keys.record_key(range_id, COUNTERS_RECORD)
        self.applied = Counters()

    def register(self, registry: Registry) -> None:
        """Adds it to ``registry``."""
        registry.finishers.append(self.finish)
        registry.reads[ReadCounters] = lambda _, __: self.applied
        registry.on_lease.append(self.restart)

    def restart(self, stored: Reader) -> None:
        """The counters as they are stored."""
        record = stored.get(self._record)
        self.applied = Counters() if record is None else _decoder.decode(record)

    def finish(self, ctx: Evaluation) -> None:
        """The proposal's tally joins the record."""
        tally = ctx.tally
        if not tally:
            return
        counted = list(_astuple(self.applied))
        for name in tally:
            counted[_PLACES[name]] += tally[name]
        after = Counters(*counted)
        if not after.conserved():
            raise StoreCorrupted(
                f"messages would be lost or made up ({self.applied} would become {after}); "
                "the proposal was stopped and nothing was changed: please report this"
            )
        ctx.staged[self._record] = _encode(after)
        ctx.after.append(partial(setattr, self, "applied", after))
