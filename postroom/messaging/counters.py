"""Conservation: enqueued = delivered + executed + pending + dead, at any timestamp.

Every proposal that moves a message changes the counters of its range in the same raw write set, so the
equation holds in every state that anybody can see. *pending* is counted by itself, not derived, so
that the equation can fail: it is checked before each proposal leaves, and a proposal that would
break it never does. When an outbox turns out empty, pending must say so too.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.registry import Registry
from postroom.messaging.requests import ReadCounters

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
    """

    enqueued: int = 0
    delivered: int = 0
    executed: int = 0
    pending_messages: int = 0
    pending_updates: int = 0
    dead: int = 0
    discarded: int = 0
    reaped: int = 0

    @property
    def pending(self) -> int:
        """All that is still in an outbox."""
        return self.pending_messages + self.pending_updates

    def conserved(self) -> bool:
        """Whether nothing is lost and nothing came from nowhere."""
        gone = self.delivered + self.executed + self.dead
        return self.enqueued == gone + self.pending and min(msgspec.structs.astuple(self)) >= 0


_decoder = msgspec.msgpack.Decoder(Counters)


class Conservation:
    """Keeps the counters of one range."""

    def __init__(self, range_id: int) -> None:
        self._record = keys.record_key(range_id, COUNTERS_RECORD)

    def register(self, registry: Registry) -> None:
        """Adds it to ``registry``."""
        registry.finishers.append(self.finish)
        registry.reads[ReadCounters] = lambda view, _: self.read(view)

    def read(self, stored: View | Evaluation) -> Counters:
        """The counters now."""
        record = stored.get(self._record)
        return Counters() if record is None else _decoder.decode(record)

    def finish(self, ctx: Evaluation) -> None:
        """The proposal's tally joins the record."""
        if not ctx.tally:
            return
        before = self.read(ctx)
        counted = {name: getattr(before, name) + more for name, more in ctx.tally.items()}
        after = msgspec.structs.replace(before, **counted)
        if not after.conserved():
            raise StoreCorrupted(
                f"messages would be lost or made up ({before} would become {after}); "
                "the proposal was stopped and nothing was changed: please report this"
            )
        ctx.staged[self._record] = msgspec.msgpack.encode(after)

    def check_empty(self, ctx: Evaluation, name: str) -> None:
        """No entry is left in an outbox, so none may be counted as pending."""
        pending = getattr(self.read(ctx), name) + ctx.tally.get(name, 0)
        if pending:
            raise StoreCorrupted(
                f"an outbox is empty, but its counter says that {pending} messages are pending; "
                "nothing was changed: please report this"
            )
