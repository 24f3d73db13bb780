"""The requests that a range serves, and their answers.

The names are those of the first paper design that the project comes from: ``Get``, ``Put``,
``ConditionalPut``, ``Increment``, ``Delete``, ``DeleteRange``, ``Scan``, ``ReverseScan``,
``Accounting``. Those that carry messages live in :mod:`postroom.messaging.requests`; a range
learns of them when a node is put together (:mod:`postroom.ranges.ports`).

Each class tells everything about its request (:mod:`postroom.ranges.contract`). Timestamps are
64-bit integers (:mod:`postroom.kv.clock`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from postroom.limits import (
    KEY_BYTES_MAX,
    LOCK_WAIT_SECONDS_MAX,
    LOCKS_AT_ONCE_MAX,
    MESSAGE_BYTES_MAX,
)
from postroom.ranges.checks import SEPARATOR, prefixes
from postroom.ranges.contract import (
    UNTIL_IT_HAPPENS,
    Command,
    Concern,
    ConcernsKey,
    ConcernsKeysAndSpans,
    ConcernsRange,
    ConcernsRoot,
    ConcernsSpan,
    ConcernsStore,
    KeySet,
    Maintenance,
    MayWait,
    RangeIds,
    Read,
    Request,
    Role,
    Touched,
    Write,
    WritesKey,
    on_everything,
)
from postroom.ranges.rights import EVERY_VERB, Need, Verb

TRANSACTION_ID_BYTES: Final = 16
CLIENT_ID_BYTES: Final = 8
"""The length of a client's id. A transaction's id begins with it, and ends with a rising number."""
UNBOUNDED: Final = 1 << 62
"""The default of ``bytes_max``: more than any answer takes."""

Key: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX)]
Bound: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX + 1)]
"""A bound of a span: a key, or the bytes that come right after one."""
Payload: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=MESSAGE_BYTES_MAX)]
"""A value, or a message: their limits are the same."""
TransactionId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=TRANSACTION_ID_BYTES, max_length=TRANSACTION_ID_BYTES)
]
TimestampNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

AnyWrite = TypeVar("AnyWrite", bound=Write)

# --- answers --------------------------------------------------------------------------------------


class Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``Get``.

    It has the value, if there is one, the timestamp at which it was read, and whether it is an
    integer that ``Increment`` wrote.
    """

    value: bytes | None
    timestamp: int
    integer: bool = False


class Values(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``GetMany``, in the order of the keys.

    It may have fewer values than there are keys: the rest is asked for at the timestamp.
    ``integers`` tells which of the values are integers, counted from 0.
    """

    values: list[bytes | None]
    timestamp: int
    integers: tuple[int, ...] = ()


class Pairs(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``Scan``: pairs, where to go on (``None``: at the end), and the timestamp.

    ``integers`` tells which of the pairs contain integers, counted from 0.
    """

    pairs: list[tuple[bytes, bytes]]
    resume: bytes | None
    timestamp: int
    integers: tuple[int, ...] = ()


class CommittedChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One committed change of one key; ``value=None`` is a deletion."""

    timestamp: int
    key: bytes
    value: bytes | None
    integer: bool = False


class CommittedChanges(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanChanges``: the changes, complete up to ``until``."""

    changes: list[CommittedChange]
    until: int


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``CommitTransaction``: its timestamp, and the answers of its writes."""

    timestamp: int
    answers: list[Any]


class Collected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``CollectGarbage``.

    Attributes:
        keys: the number of engine keys that went.
        more: whether more may go now.
        oldest: the timestamp of the oldest garbage that is left for later; 0: there is none.
    """

    keys: int
    more: bool
    oldest: int


# --- reads ----------------------------------------------------------------------------------------


class Get(ConcernsKey, Read, frozen=True, tag="get"):
    """A request for the value of ``key`` at ``timestamp``.

    With 0 it is the newest value, at a timestamp that the answer tells.
    """

    answer: ClassVar = Value
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    key: Key
    timestamp: TimestampNumber = 0


class GetForUpdate(ConcernsKey, Read, frozen=True, tag="get_for_update"):
    """A request to lock ``key`` for the transaction, and for its newest value.

    The lock is in the leaseholder's memory. It ends with the transaction, but after ``seconds_max``
    at the latest.

    Attributes:
        began: when the transaction began, or began first if it is tried again: older ones win.
        moves: whether it has locked everything that it has read. Then it is answered at a later
            timestamp, and not refused, if the key has changed since ``timestamp``.
    """

    answer: ClassVar = Value
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ, Verb.WRITE)
    role: ClassVar = Role.WRITE
    wait_seconds_max: ClassVar = UNTIL_IT_HAPPENS
    locks: ClassVar = True
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("transaction_id",)

    key: Key
    timestamp: TimestampNumber
    transaction_id: TransactionId
    seconds_max: Seconds
    began: TimestampNumber = 0
    moves: bool = False


class Lock(ConcernsKeysAndSpans, Read, frozen=True, tag="lock"):
    """A request to lock keys and spans for the transaction, like ``GetForUpdate``.

    It reads nothing, and is answered when it has all of them.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    role: ClassVar = Role.WRITE
    wait_seconds_max: ClassVar = UNTIL_IT_HAPPENS
    locks: ClassVar = True
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("transaction_id",)

    keys: Annotated[list[Key], msgspec.Meta(max_length=LOCKS_AT_ONCE_MAX)]
    spans: Annotated[list[tuple[Bound, Bound | None]], msgspec.Meta(max_length=LOCKS_AT_ONCE_MAX)]
    transaction_id: TransactionId
    seconds_max: Seconds
    began: TimestampNumber = 0


class GetMany(Read, frozen=True, tag="get_many"):
    """A request for the values of several keys at one timestamp.

    If all are more than ``bytes_max``, the first of them are answered, but at least one.
    """

    answer: ClassVar = Values
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    keys: list[Key]
    timestamp: TimestampNumber = 0
    bytes_max: Count = UNBOUNDED

    def concerns(self) -> Concern:
        """Return the keys."""
        return KeySet(tuple(self.keys))

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about some of the keys."""
        return msgspec.structs.replace(self, keys=[*concern.keys])


class Scan(ConcernsSpan, Read, frozen=True, tag="scan"):
    """A request for a page of the pairs in ``[start, end)``; ``end=None`` is unbounded."""

    answer: ClassVar = Pairs
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    start: Bound
    end: Bound | None
    timestamp: TimestampNumber
    pairs_max: Count
    bytes_max: Count


class ReverseScan(ConcernsSpan, Read, frozen=True, tag="reverse_scan"):
    """A request for a page of the pairs in ``[start, end)``, from the end backwards."""

    answer: ClassVar = Pairs
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    start: Bound
    end: Bound | None
    timestamp: TimestampNumber
    pairs_max: Count
    bytes_max: Count


class ScanChanges(MayWait, ConcernsSpan, Read, frozen=True, tag="scan_changes"):
    """A request for all versions committed in ``[start, end)`` after a timestamp, oldest first.

    Attributes:
        start, end: the span.
        after: the timestamp.
        wait: whether it is answered only when there is one.
        until: a timestamp. The answer is complete up to it, if it fits, and has nothing later;
            nothing more will be committed up to it. 0: the answer is complete up to what is
            applied.
    """

    answer: ClassVar = CommittedChanges
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    read_at: ClassVar[str] = "until"

    start: Bound
    end: Bound | None
    after: TimestampNumber
    wait: bool = True
    until: TimestampNumber = 0

    def waits_for_intents(self) -> bool:
        """Return whether it has to be complete; else it is complete up to the first intent."""
        return bool(self.until)


class Now(ConcernsStore, Read, frozen=True, tag="now"):
    """A request for a timestamp above all earlier ones."""

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = ()
    is_served_in_restore: ClassVar = True


class ReadAccounting(Read, frozen=True, tag="read_accounting"):
    """A request for the sums of the metrics of a prefix."""

    answer: ClassVar = dict[str, int]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    prefix: Key

    def concerns(self) -> Concern:
        """Return the prefix, which is the key of its sums."""
        return KeySet((self.prefix,))


class Protect(ConcernsRoot, Read, frozen=True, tag="protect", repr_omit_defaults=True):
    """A request to keep garbage collection from a timestamp (0: now) until ``Unprotect``.

    The answer is the timestamp.

    Attributes:
        whole: whether records without versions are kept as they are now, too
            (:mod:`.protections`).
        client, host: the owner. The node that serves the client sets them, whatever they are. Both
            empty: the node's own process.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = ()
    changes_holdings: ClassVar = True

    timestamp: TimestampNumber = 0
    whole: bool = False
    client: bytes = b""
    host: str = ""

    def needs(self) -> Iterator[Need]:
        """Yield the right to read everything, for a timestamp that is protected as a whole."""
        if self.whole:
            yield on_everything(Verb.READ)


class Unprotect(ConcernsRoot, Read, frozen=True, tag="unprotect"):
    """A request to take back one protection of ``timestamp``."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = ()
    is_served_in_restore: ClassVar = True

    timestamp: TimestampNumber


class ReleaseLocks(ConcernsStore, Read, frozen=True, tag="release_locks"):
    """A request to free what a transaction has locked, because it was rolled back."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = ()
    role: ClassVar = Role.WRITE
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("transaction_id",)

    transaction_id: TransactionId


# --- writes ---------------------------------------------------------------------------------------


class Put(WritesKey, Write, frozen=True, tag="put", repr_omit_defaults=True):
    """An update that sets ``key`` to ``value``.

    Attributes:
        key: up to 8 KiB.
        value: up to 1 MiB; with a codec, any value that it packs.
        integer: whether ``value`` is the 8 bytes of an integer: for layers on top.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    is_prepared: ClassVar = True

    key: Key
    value: Payload
    integer: bool = False


class ConditionalPut(WritesKey, Write, frozen=True, tag="conditional_put"):
    """A request to set ``key`` to ``value`` if it contains ``expected`` (``None``: nothing).

    With ``packed``, ``expected`` is a value that a codec packed, no integer; and the integer
    ``or_integer``, if there is one, is expected as well.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ, Verb.WRITE)
    is_prepared: ClassVar = True

    key: Key
    value: Payload
    expected: bytes | None
    packed: bool = False
    or_integer: int | None = None


class Increment(WritesKey, Write, frozen=True, tag="increment", repr_omit_defaults=True):
    """An update that adds ``by`` to the 64-bit integer at ``key``; an absent key counts as 0.

    Attributes:
        key: up to 8 KiB.
        by: a 64-bit integer; a negative one subtracts.
        packed: whether values are packed by a codec, so that 8 bytes that no ``Increment`` has
            stored are no integer (see ``evaluators.number_in``): for layers on top.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ, Verb.WRITE)
    is_prepared: ClassVar = True

    key: Key
    by: int = 1
    packed: bool = False


class Delete(WritesKey, Write, frozen=True, tag="delete"):
    """An update that removes ``key``, if it is there.

    Attributes:
        key: up to 8 KiB.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    is_prepared: ClassVar = True
    frees_room: ClassVar = True

    key: Key


class DeleteRange(ConcernsSpan, Write, frozen=True, tag="delete_range", repr_omit_defaults=True):
    """An update that removes the keys in ``[start, end)``.

    The answer is how many there were.

    Attributes:
        start: first key.
        end: first key that stays; ``None``: no bound.
        part_of: for layers on top. ``None``: all of them, in one transaction. Else a part of them,
            at most ``DELETED_AT_ONCE_MAX``, and all in the range of ``start``; the answer is
            ``[how many, where the next part begins, when the first part began]``. What is written
            after that (0: now) stays. If the next part is of another range, whose clock may be
            ahead, it is told 0 as it was.
    """

    answer: ClassVar = int | tuple[int, bytes | None, int]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ, Verb.WRITE)
    is_prepared: ClassVar = True
    frees_room: ClassVar = True

    start: Bound
    end: Bound | None
    part_of: TimestampNumber | None = None

    def participant(self) -> Concern:
        """Return the span, or where a part of it begins, which ends at the end of its range."""
        return self.concerns() if self.part_of is None else KeySet((self.start,))

    def touches(self) -> Touched:
        """Return the span."""
        return self.start, self.end

    def is_long(self) -> bool:
        """Return ``True``: there may be any number of keys."""
        return True


class Accounting(ConcernsKey, Write, frozen=True, tag="accounting", repr_omit_defaults=True):
    """An update that adds deltas to metrics of ``key`` and of every prefix of it.

    Prefixes end at the separator ``/``.

    Attributes:
        key: up to 8 KiB.
        deltas: the numbers to add, by the names of the metrics.
        within: for the store. It adds to the prefixes in this span of keys only; ``None``: to all.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    is_prepared: ClassVar = True

    key: Key
    deltas: dict[str, int]
    within: tuple[Bound, Bound | None] | None = None

    def concerns(self) -> Concern:
        """Return the keys of the sums: the key and its prefixes."""
        return KeySet(tuple(dict.fromkeys((self.key, *prefixes(self.key)))))

    def needs(self) -> Iterator[Need]:
        """Yield the right to write its key, and what the sums of its prefixes are sums of."""
        sums = (each + SEPARATOR for each in prefixes(self.key) if each != self.key)
        yield Need(Verb.WRITE, (self.key, *sums))


UpdateRequest: TypeAlias = Put | Increment | Delete | DeleteRange | Accounting
"""The requests that can be deferred, as executable messages."""


# --- commands -------------------------------------------------------------------------------------


class CommitTransaction(Command, Generic[AnyWrite], frozen=True, tag="commit"):
    """A request to commit a transaction: to check what it has read, then to do its writes.

    It is generic, because only higher layers know the writes (:mod:`postroom.protocol.requests`).
    Committing again with the same id is safe, and tells the outcome.

    Attributes:
        transaction_id: 16 bytes, unique.
        began: the timestamp at which it began; it expires ``seconds_max`` later.
        read_timestamp: the timestamp of its reads; 0 if it read nothing.
        anchor: the key beside which its COMMIT record lies.
        reads: the keys that it read.
        spans: the spans that it scanned.
        writes: the requests to do, in order; each sees the effects of those before it.
    """

    answer: ClassVar = Committed
    since: ClassVar = 1
    verbs: ClassVar = ()
    role: ClassVar = Role.WRITE
    wait_seconds_max: ClassVar = LOCK_WAIT_SECONDS_MAX
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("transaction_id",)
    may_end_unknown: ClassVar = True

    transaction_id: TransactionId
    began: TimestampNumber
    seconds_max: Seconds
    read_timestamp: TimestampNumber
    anchor: Key
    reads: list[Key]
    spans: list[tuple[Bound, Bound | None]]
    writes: list[AnyWrite]

    def concerns(self) -> Concern:
        """Return where it is decided: at its anchor, or in the range of a first write without key.

        :meth:`participants` has all.
        """
        if not self.anchor and self.writes:
            concern: Concern = self.writes[0].concerns()
            if isinstance(concern, RangeIds):
                return concern
        return KeySet((self.anchor,))

    def participants(self) -> Iterator[Concern]:
        """Yield everything that it reads or writes, but not where its messages go."""
        yield self.concerns()
        yield KeySet(tuple(self.reads), tuple(self.spans))
        for write in self.writes:
            if write.participates():
                yield write.participant()

    def works_at(self) -> Iterator[KeySet]:
        """Yield what it reads, and where its writes are done."""
        yield KeySet(tuple(self.reads), tuple(self.spans))
        for write in self.writes:
            yield from write.works_at()

    def single_keys(self) -> Sequence[bytes] | None:
        """Return its anchor, and the keys that it reads or writes, if these are all."""
        anchor = self.anchor
        if self.spans or not anchor:
            return None
        found = [anchor, *self.reads] if self.reads != [anchor] else [anchor]
        for write in self.writes:
            if write.participates():
                single = write.single_keys()
                if single is None:
                    return None
                if single != (anchor,):
                    found += single
        return found

    def needs(self) -> Iterator[Need]:
        """Yield the rights to what it reads and to what its writes do.

        An anchor that is none of its writes' own needs a right as well, whichever.
        """
        yield Need(Verb.READ, self.reads, self.spans)
        if not any(write.anchor() == self.anchor for write in self.writes):
            yield Need(EVERY_VERB, (self.anchor,))
        for write in self.writes:
            yield from write.needs()

    def contained(self) -> Iterator[Request]:
        """Yield the request, and its writes."""
        yield self
        for write in self.writes:
            yield from write.contained()

    def needs_no_room(self) -> bool:
        """Return whether none of its writes needs room on the device."""
        return all(write.frees_room for write in self.writes)


# --- maintenance ----------------------------------------------------------------------------------


class CollectGarbage(ConcernsRange, Maintenance, frozen=True, tag="collect_garbage"):
    """A request to remove versions overwritten before ``threshold``.

    It removes at most about ``keys_max`` of them.
    """

    answer: ClassVar = Collected
    since: ClassVar = 1
    frees_room: ClassVar = True

    threshold: int
    keys_max: int
