"""The requests between the ranges that take part in one transaction.

::

    anchor ── Prepare ──▶ participant   check, and keep others away     answer: Prepared
    anchor ── Resolve ──▶ participant   it has committed, or is dead
    participant ── Push ──▶ anchor      has it committed?               answer: Standing

Each of them may be lost, doubled or delayed. A :class:`Ballot` tells one run of a commit from the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeAlias

import msgspec

from postroom.limits import KEY_BYTES_MAX
from postroom.ranges.contract import (
    ConcernsKey,
    ConcernsKeysAndSpans,
    ConcernsRange,
    ConcernsSpan,
    KeySet,
    Maintenance,
    Read,
    Role,
)
from postroom.ranges.requests import (
    TRANSACTION_ID_BYTES,
    AnyWrite,
    Bound,
    Key,
    TimestampNumber,
    TransactionId,
)
from postroom.ranges.rights import Verb

AnchorKey: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX, title="anchor")]
"""The key beside which the COMMIT record of a transaction lies, perhaps in another range."""


class Ballot(NamedTuple):
    """The number of one run of a commit over several ranges; later ones are greater.

    Attributes:
        range_id: the id of the anchor's range.
        lease_sequence: the lease under which the run has begun.
        number: its number among the runs under this lease.
    """

    range_id: int
    lease_sequence: int
    number: int


class Prepared(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``Prepare``.

    Attributes:
        timestamp: a timestamp that the transaction must not commit below.
        answers: the answers of its writes in this range.
    """

    timestamp: int
    answers: list[Any]


class Standing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``Push``.

    Attributes:
        timestamp: the timestamp at which the ballot has committed; 0: it has not.
        is_pending: whether it may still commit, later than at the timestamp that was asked about.
            Else, if it has not committed, it never will.
    """

    timestamp: int = 0
    is_pending: bool = False


class Prepare(Maintenance, Generic[AnyWrite], frozen=True, tag="prepare"):
    """A request to prepare one range's part of a transaction.

    Attributes:
        transaction_id: the id of the transaction.
        ballot: the run of its commit.
        anchor: the key that decides about it.
        began: the timestamp at which it began. An older one goes before a younger one.
        read_timestamp: the timestamp of its reads; 0 if it read nothing.
        reads, spans: the keys and spans of the range that it has read.
        writes: its writes in this range, in order.
    """

    answer: ClassVar = Prepared
    since: ClassVar = 1
    is_served_in_restore: ClassVar = False

    transaction_id: TransactionId
    ballot: Ballot
    anchor: AnchorKey
    began: TimestampNumber
    read_timestamp: TimestampNumber
    reads: list[Key]
    spans: list[tuple[Bound, Bound | None]]
    writes: list[AnyWrite]

    def concerns(self) -> KeySet:
        """Return what it has read, and writes."""
        keys, spans = list(self.reads), list(self.spans)
        for write in self.writes:
            concern = write.concerns()
            if isinstance(concern, KeySet):
                keys += concern.keys
                spans += concern.spans
        return KeySet(tuple(keys), tuple(spans))

    def single_keys(self) -> Sequence[bytes] | None:
        """Return what it has read, and writes, if that is single keys."""
        if self.spans:
            return None
        found = list(self.reads)
        for write in self.writes:
            single = write.single_keys()
            if single is None:
                return None
            found += single
        return found or None


class Resolve(ConcernsSpan, Maintenance, frozen=True, tag="resolve"):
    """A request to end what is prepared of a transaction for the keys in ``[start, end)``.

    Attributes:
        transaction_id: the id of the transaction.
        ballot: the run of its commit; what another one has prepared stays.
        timestamp: the timestamp at which it has committed; 0: it never will.
        start, end: the keys of the range.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    frees_room: ClassVar = True
    is_served_in_restore: ClassVar = False

    transaction_id: TransactionId
    ballot: Ballot
    timestamp: TimestampNumber
    start: Bound
    end: Bound | None


class Push(ConcernsKey, Read, frozen=True, tag="push"):
    """A question to the range of a transaction's anchor: whether the transaction has committed.

    Attributes:
        key: the anchor.
        transaction_id: the id of the transaction.
        ballot: the run of its commit.
        above: a timestamp. If the transaction has not committed it will do so above this one.
        began: the timestamp at which a transaction began that waits for it. It dies if that one is
            older. 0: it may live.
        waiting: the id of the transaction that waits; it decides between two of the same age.
    """

    answer: ClassVar = Standing
    since: ClassVar = 1
    role: ClassVar[Role | None] = None

    key: Key
    transaction_id: TransactionId
    ballot: Ballot
    above: TimestampNumber = 0
    began: TimestampNumber = 0
    waiting: Annotated[bytes, msgspec.Meta(max_length=TRANSACTION_ID_BYTES)] = b""

    def waits_for_intents(self) -> bool:
        """Return false: it is about a transaction and not about keys."""
        return False


class Refresh(ConcernsKeysAndSpans, Read, frozen=True, tag="refresh"):
    """A request for the greatest timestamp of a change after one timestamp, and until another.

    The answer is 0 if nothing has changed. Nothing will change any more in between.

    Attributes:
        keys, spans: the keys and spans.
        after, until: the timestamps; ``until=0`` is now.
    """

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)
    read_at: ClassVar[str] = "until"

    keys: list[Key]
    spans: list[tuple[Bound, Bound | None]]
    after: TimestampNumber
    until: TimestampNumber = 0


class ForgetCommits(ConcernsRange, Maintenance, frozen=True, tag="forget_commits"):
    """A request to forget which ranges had to hear of some commits: all of them have.

    Attributes:
        names: the names of the commits, as they end the engine keys of their lists.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    frees_room: ClassVar = True
    is_served_in_restore: ClassVar = False

    names: list[bytes]
