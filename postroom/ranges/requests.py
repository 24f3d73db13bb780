"""The requests that a range serves, and their answers.

The names are those of the first paper design that the project comes from: ``Get``, ``Put``,
``ConditionalPut``, ``Increment``, ``Delete``, ``DeleteRange``, ``Scan``, ``ReverseScan``,
``Accounting``. Those that carry messages live in :mod:`postroom.messaging.requests`; a range
learns of them when a node is put together (:mod:`postroom.ranges.registry`).

Three kinds, told apart by the table in which their evaluator is registered:

* *reads* are answered by the leaseholder at once, or wait for a proposal under way;
* *writes* are evaluated into raw writes and proposed; they travel inside ``CommitTransaction``;
* *maintenance* is what the range's own services ask for (collecting garbage, delivering).

Timestamps are 64-bit integers (:mod:`postroom.kv.clock`). Requests are immutable and carry
nothing but data, so that they can travel. The limits on their fields are checked by the decoder,
where they come in from elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import msgspec

from postroom.limits import KEY_BYTES_MAX, LOCKS_AT_ONCE_MAX, MESSAGE_BYTES_MAX

TRANSACTION_ID_BYTES: Final = 16
CLIENT_ID_BYTES: Final = 8
"""A transaction's id begins with its client's, and ends with a number that rises."""
UNBOUNDED: Final = 1 << 62
"""Where a client may leave ``bytes_max`` out: more than any answer takes."""

Key: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX)]
Bound: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX + 1)]
"""Of a span: a key, or what comes right after one."""
Payload: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=MESSAGE_BYTES_MAX)]
"""A value, or a message: their limits are the same."""
TransactionId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=TRANSACTION_ID_BYTES, max_length=TRANSACTION_ID_BYTES)
]
Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

Write = TypeVar("Write", bound="Request")


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What all requests are.

    Attributes:
        frees_room: whether it is taken though the device has hardly any room left. It frees some,
            with the next collection of garbage at the latest, or needs next to none.
    """

    frees_room: ClassVar[bool] = False


# --- reads ----------------------------------------------------------------------------------


class Get(Request, frozen=True, array_like=True, tag="get", gc=False):
    """The value of ``key`` at ``timestamp``; 0: the newest, at a timestamp that the answer
    tells.
    """

    key: Key
    timestamp: Moment = 0


class GetForUpdate(Request, frozen=True, array_like=True, tag="get_for_update", gc=False):
    """Locks ``key`` for the transaction in the leaseholder's memory, then reads the newest.

    The lock ends with the transaction, but after ``seconds_max`` at the latest.

    Attributes:
        began: when the transaction began, or began first if it is tried again: older ones win.
        moves: all that it has read it has locked. Then it is answered at a later timestamp, instead
            of being refused, if the key has changed since ``timestamp``.
    """

    key: Key
    timestamp: Moment
    transaction_id: TransactionId
    seconds_max: Seconds
    began: Moment = 0
    moves: bool = False


class Lock(Request, frozen=True, array_like=True, tag="lock"):
    """Locks keys and spans for the transaction, as ``GetForUpdate`` does, and reads nothing.

    Answered when it has all of them.
    """

    keys: Annotated[list[Key], msgspec.Meta(max_length=LOCKS_AT_ONCE_MAX)]
    spans: Annotated[list[tuple[Bound, Bound | None]], msgspec.Meta(max_length=LOCKS_AT_ONCE_MAX)]
    transaction_id: TransactionId
    seconds_max: Seconds
    began: Moment = 0


class GetMany(Request, frozen=True, array_like=True, tag="get_many"):
    """The values of several keys at one timestamp; only the first of them, but one at least, if
    all are more than ``bytes_max``.
    """

    keys: list[Key]
    timestamp: Moment = 0
    bytes_max: Count = UNBOUNDED


class Scan(Request, frozen=True, array_like=True, tag="scan", gc=False):
    """A page of the pairs in ``[start, end)``; ``end=None`` is unbounded."""

    start: Bound
    end: Bound | None
    timestamp: Moment
    pairs_max: Count
    bytes_max: Count


class ReverseScan(Request, frozen=True, array_like=True, tag="reverse_scan", gc=False):
    """The same, from the end backwards."""

    start: Bound
    end: Bound | None
    timestamp: Moment
    pairs_max: Count
    bytes_max: Count


class ScanChanges(Request, frozen=True, array_like=True, tag="scan_changes", gc=False):
    """All versions committed in ``[start, end)`` after a timestamp, oldest first.

    With ``wait``, is answered only once there is one.
    """

    start: Bound
    end: Bound | None
    after: Moment
    wait: bool = True


class Now(Request, frozen=True, array_like=True, tag="now", gc=False):
    """A timestamp above every one so far; answered with the number."""


class ReadAccounting(Request, frozen=True, array_like=True, tag="read_accounting", gc=False):
    """The metric sums of a prefix."""

    prefix: Key


class Protect(
    Request, frozen=True, array_like=True, tag="protect", gc=False, repr_omit_defaults=True
):
    """Keeps garbage collection from ``timestamp`` (0: now) until ``Unprotect``.

    Attributes:
        timestamp: which.
        whole: keeps what has no versions as it is now, too (:mod:`.protections`).
        client, host: whose it is: said by the node that serves the client, whatever that says. Both
            empty: the node's own process.
    """

    timestamp: Moment = 0
    whole: bool = False
    client: bytes = b""
    host: str = ""


class Unprotect(Request, frozen=True, array_like=True, tag="unprotect", gc=False):
    """Takes one protection of ``timestamp`` back."""

    timestamp: Moment


class ReleaseLocks(Request, frozen=True, array_like=True, tag="release_locks", gc=False):
    """Frees what a transaction locked, because it was rolled back."""

    transaction_id: TransactionId


# --- writes ---------------------------------------------------------------------------------


class Put(Request, frozen=True, array_like=True, tag="put", gc=False, repr_omit_defaults=True):
    """An update that sets ``key`` to ``value``.

    Attributes:
        key: up to 8 KiB.
        value: up to 1 MiB; with a codec, any value that it packs.
        integer: whether ``value`` is the 8 bytes of an integer: for layers on top.
    """

    key: Key
    value: Payload
    integer: bool = False


class ConditionalPut(Request, frozen=True, array_like=True, tag="conditional_put", gc=False):
    """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

    With ``packed``, ``expected`` is a value that a codec packed, no integer; and the integer
    ``or_integer``, if there is one, is expected as well.
    """

    key: Key
    value: Payload
    expected: bytes | None
    packed: bool = False
    or_integer: int | None = None


class Increment(
    Request, frozen=True, array_like=True, tag="increment", gc=False, repr_omit_defaults=True
):
    """An update that adds ``by`` to the 64-bit integer at ``key``; an absent key counts as 0.

    Attributes:
        key: up to 8 KiB.
        by: a 64-bit integer; a negative one subtracts.
        packed: whether values are packed by a codec, so that 8 bytes that no ``Increment`` has
            stored are no integer (see ``evaluators.number_in``): for layers on top.
    """

    key: Key
    by: int = 1
    packed: bool = False


class Delete(Request, frozen=True, array_like=True, tag="delete", gc=False):
    """An update that removes ``key``, if it is there.

    Attributes:
        key: up to 8 KiB.
    """

    frees_room: ClassVar[bool] = True

    key: Key


class DeleteRange(
    Request, frozen=True, array_like=True, tag="delete_range", gc=False, repr_omit_defaults=True
):
    """An update that removes the keys in ``[start, end)``.

    The answer is how many there were.

    Attributes:
        start: first key.
        end: first key that stays; ``None``: no bound.
        part_of: for layers on top. ``None``: all of them, in one transaction. Else a part of them,
            at most about ``DELETED_TOGETHER_MAX``; the answer is ``[how many, where the next part
            begins, when the first part began]``. What is written after that (0: now) stays.
    """

    frees_room: ClassVar[bool] = True

    start: Bound
    end: Bound | None
    part_of: Moment | None = None


class Accounting(Request, frozen=True, array_like=True, tag="accounting"):
    """An update that adds deltas to metrics of ``key`` and of every prefix of it.

    Prefixes end at the separator ``/``.

    Attributes:
        key: up to 8 KiB.
        deltas: the numbers to add, by the names of the metrics.
    """

    key: Key
    deltas: dict[str, int]


UpdateRequest: TypeAlias = Put | Increment | Delete | DeleteRange | Accounting
"""What can be deferred as an executable message."""


class CommitTransaction(
    Request, Generic[Write], frozen=True, array_like=True, tag="commit", gc=False
):
    """Commits a transaction that lies in one range: checks its reads, then does its writes.

    Generic, because what writes there are is known only above (:mod:`postroom.messaging.requests`).

    Attributes:
        transaction_id: 16 bytes, unique; committing again with it is safe and tells the outcome.
        began: the timestamp at which it began; it expires ``seconds_max`` later.
        read_timestamp: where it read; 0 if it read nothing.
        anchor: the key beside which its COMMIT record lies.
        reads: the keys that it read.
        spans: the spans that it scanned.
        writes: what it does, in order; each sees those before it.
    """

    transaction_id: TransactionId
    began: Moment
    seconds_max: Seconds
    read_timestamp: Moment
    anchor: Key
    reads: list[Key]
    spans: list[tuple[Bound, Bound | None]]
    writes: list[Write]


def frees_room(request: Request) -> bool:
    """Return whether ``request`` does, or all that it commits; see :class:`Request`."""
    if type(request) is CommitTransaction:
        return all(write.frees_room for write in request.writes)
    return request.frees_room


# --- maintenance ----------------------------------------------------------------------------


class CollectGarbage(Request, frozen=True, array_like=True, tag="collect_garbage", gc=False):
    """Removes versions overwritten before ``threshold``, at most about ``keys_max`` of them."""

    frees_room: ClassVar[bool] = True

    threshold: int
    keys_max: int


# --- answers --------------------------------------------------------------------------------


class Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answers ``Get``: the value, if any, the timestamp at which it was read, and whether it is an
    integer that ``Increment`` wrote.
    """

    value: bytes | None
    timestamp: int
    integer: bool = False


class Values(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``GetMany``, in the order asked. They may be fewer: the rest is asked for at the
    timestamp. ``integers`` tells which of them are integers, counted from 0.
    """

    values: list[bytes | None]
    timestamp: int
    integers: tuple[int, ...] = ()


class Pairs(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``Scan``: pairs, where to go on (``None``: at the end), the timestamp, and which of
    the pairs hold integers, counted from 0.
    """

    pairs: list[tuple[bytes, bytes]]
    resume: bytes | None
    timestamp: int
    integers: tuple[int, ...] = ()


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One committed change of one key; ``value=None`` is a deletion."""

    timestamp: int
    key: bytes
    value: bytes | None
    integer: bool = False


class Changes(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanChanges``: the changes, complete up to ``until``."""

    changes: list[Change]
    until: int


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answers ``CommitTransaction``: when it committed, and what each write answered."""

    timestamp: int
    answers: list[Any]


class Collected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answers ``CollectGarbage``: how many engine keys went, whether more may go now, and whether
    any list is left for later.
    """

    keys: int
    more: bool
    left: bool
