"""A range that takes part in transactions, with an engine and a clock of its own."""

from __future__ import annotations

import itertools
from typing import Any, Final

from postroom.kv import keys
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.requests import Committed, CommitTransaction, Get
from postroom.ranges.transactions.requests import Ballot, Prepare, Prepared, Resolve
from tests.messaging.one_range import Asked, OneRange

SECOND: Final = 1000 << 16
"""A second, in units of timestamps."""
ANCHOR: Final = b"anchor"
"""A key of another range, which no test of one participant asks."""

_numbers = itertools.count(1)


def transaction_id() -> bytes:
    """Return a new id."""
    return b"a client" + next(_numbers).to_bytes(8, "big")


class Participant(OneRange):
    """A range on a node; another node may take it over.

    Args:
        start, end: its keys.
        ahead_seconds: how far its wall clock is ahead of that of others.
        range_id: its id.
        before: the node that had the lease before, on whose disk it goes on.
    """

    lease_seconds = 9.0

    def __init__(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        ahead_seconds: float = 0.0,
        range_id: int = 2,
        before: Participant | None = None,
    ) -> None:
        self._ahead_milliseconds = round(ahead_seconds * 1000)
        self.stands = False
        if before is None:
            engine = MemoryEngine(MemoryDisk())
            descriptor = encode_descriptor(RangeDescriptor(range_id, start, end))
            engine.write({descriptor_key(range_id): descriptor}, sync=True)
        else:
            engine, self.node_id, range_id = before.engine, before.node_id + 1, before.range_id
        self.range_id = range_id
        super().__init__(is_general_only=False, engine=engine, range_id=range_id)
        self.pass_time(0.0 if before is None else 2 * self.lease_seconds)
        self.intents = self.replica.intents

    def _wall_milliseconds(self) -> int:
        seconds = 0.0 if self.stands else self.seconds
        return 1_700_000_000_000 + round(seconds * 1000) + self._ahead_milliseconds

    def taken_over(self, *, ahead_seconds: float = 0.0) -> Participant:
        """Return the next leaseholder, whose memory is fresh; this one leads no longer."""
        self.group.is_leader = False
        self.replica.on_leadership(False, 3)
        self.settle()
        return type(self)(before=self, ahead_seconds=ahead_seconds)

    # --- requests

    def result(self, request: Any) -> Any:
        """Return the answer of a request, which must come at once."""
        return answer_of(self.ask(request))

    def prepare(self, id_: bytes, *writes: Any, **fields: Any) -> Prepared:
        """Prepare writes of a transaction."""
        prepared: Prepared = self.result(self.preparation(id_, *writes, **fields))
        return prepared

    def preparation(self, id_: bytes, *writes: Any, **fields: Any) -> Prepare[Any]:
        said: dict[str, Any] = {
            "ballot": Ballot(1, 1, 1), "anchor": ANCHOR, "began": self.clock.reading(),
            "read_timestamp": 0, "reads": [], "spans": [],
        }  # fmt: skip
        return Prepare(id_, writes=list(writes), **(said | fields))

    def resolve(self, id_: bytes, timestamp: int, ballot: Ballot | None = None) -> None:
        """End what is prepared of a transaction. The answer may wait for what is sent then."""
        asked = self.ask(self.resolution(id_, timestamp, ballot))
        if asked.answers:
            answer_of(asked)

    def resolution(self, id_: bytes, timestamp: int, ballot: Ballot | None = None) -> Resolve:
        start, end = self.replica.bounds.start, self.replica.bounds.end
        return Resolve(id_, ballot or Ballot(1, 1, 1), timestamp, start, end)

    def transaction(self, *writes: Any, **fields: Any) -> CommitTransaction[Any]:
        said: dict[str, Any] = {"read_timestamp": 0, "anchor": b"a", "reads": [], "spans": []}
        now = self.clock.reading()
        said |= {"began": now} | fields
        return CommitTransaction(transaction_id(), seconds_max=60.0, writes=list(writes), **said)

    def commit(self, *writes: Any, **fields: Any) -> Committed:
        """Commit writes in this range alone."""
        committed: Committed = self.result(self.transaction(*writes, **fields))
        return committed

    def value(self, key: bytes, timestamp: int = 0) -> bytes | None:
        """Return the value of a key."""
        found: bytes | None = self.result(Get(key, timestamp)).value
        return found

    def records(self) -> int:
        """Return the number of prepared records that are stored."""
        prefix = keys.prepared_prefix(self.range_id)
        return sum(1 for _ in self.engine.iterate(prefix, keys.after_prefix(prefix)))


def answer_of(asked: Asked) -> Any:
    """Return the answer that has come, or raise the error that has."""
    [(answer, error)] = asked.answers
    if error is not None:
        raise error
    return answer
