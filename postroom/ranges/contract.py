"""The contract of a request: everything that others need to know of it, told by its class.

The fields of a request are its data. Its class tells the rest, so that nobody else has a table of
requests: who may send it, where it goes, what answers it, whether it waits. To add a request, write
its class, its evaluator, its call and its test (CONTRIBUTING.md shows it).

::

    Request ─┬─ Read         answered from applied state, perhaps after a wait
             ├─ Write        evaluated in a transaction; travels inside CommitTransaction
             ├─ Command      evaluated into a proposal of its own accord
             └─ Maintenance  a command of the node's own services; no client may send it

The method :meth:`Request.needs` tells the rights that its client needs (:mod:`.rights`).

The method :meth:`Request.concerns` tells the keys and spans that a request concerns, or the ids of
ranges, or a :class:`Scope`. The mixins ``ConcernsKey``, ``ConcernsSpan``, ``ConcernsStore``,
``ConcernsRoot``, ``ConcernsRange``, ``ConcernsRangesOfIds`` and ``ConcernsNode`` tell it for the
usual cases. A router needs nothing else::

    KeySet ────▶ the ranges that own the keys, and those that own a part of the spans
    RangeIds ──▶ the ranges with these ids; each is sent what is its own
    WHOLE_STORE ▶ every range; the answers are merged
    ROOT ──────▶ the one range that contains the records of which the store has one each
    RANGE ─────▶ the range whose service has made the request
    NODE ──────▶ the node that is asked, whichever it is

Requests are immutable and carry nothing but data, so that they can travel. The limits on their
fields are checked by the decoder, where they come in from elsewhere.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import msgspec

from postroom.errors import Invalid
from postroom.ranges.rights import EVERY_KEY, EVERY_QUEUE, Need, Verb

RANGE_ID_BYTES: Final = 8
_replace: Final[Any] = msgspec.structs.replace
UNTIL_IT_HAPPENS: Final = math.inf
"""The ``wait_seconds_max`` of a request that waits at a node for as long as its client wants."""


Touched: TypeAlias = bytes | tuple[bytes, bytes | None] | None
"""The key, or the span of keys, that a write may find locked; ``None``: it waits for no lock."""


class Role(enum.Enum):
    """The permissions of a client. Each role includes those before it.

    A client without permissions of its own (``NONE``) has the rights that are granted to its name.
    """

    NONE = "none"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    @classmethod
    def named(cls, name: str) -> Role:
        """Return the role of a name.

        Raises:
            Invalid: there is none of this name.
        """
        try:
            return cls(name)
        except ValueError:
            raise Invalid(
                f"there is no role {name[:40]!r}: roles are none, read, write and admin"
            ) from None

    def includes(self, other: Role) -> bool:
        """Return whether this role may do what ``other`` may."""
        order = list(Role)
        return order.index(other) <= order.index(self)


class Scope(enum.Enum):
    """The destinations of requests that are not told by keys; see the module."""

    WHOLE_STORE = "whole store"
    ROOT = "root"
    RANGE = "range"
    NODE = "node"


class KeySet(NamedTuple):
    """Keys, and spans of keys ``[start, end)``; ``end=None`` is unbounded."""

    keys: tuple[bytes, ...] = ()
    spans: tuple[tuple[bytes, bytes | None], ...] = ()


ROOT_ID: Final = 1
"""The id of the root, the range to which ``Scope.ROOT`` leads."""


class RangeIds(NamedTuple):
    """The ids of the ranges in which records lie that belong to no key, like dead letters."""

    ids: tuple[int, ...]


Concern: TypeAlias = KeySet | RangeIds | Scope
"""The part of the store that a request concerns."""


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request.

    Attributes:
        answer: the type of the answer.
        since: the first revision of the protocol that knows it.
        role: the least role of a client that may send it; ``None``: no client may.
        verbs: the verbs that a client without such a role needs, each of them; of verbs that are
            joined (``READ | REAP``), one is enough.
        wait_seconds_max: the longest time that it may wait at a node for something to happen; 0: it
            never waits.
        locks: whether it may lock or claim something for its client.
        changes_holdings: whether the leaseholder may hold more, or less, for the client after it.
        own_ids: the names of the fields with ids of transactions and consumers. These must be of
            the client that sends it.
        may_end_unknown: whether a lost answer leaves the client not knowing what has happened, so
            that it is told ``CommitUnknown``.
        frees_room: whether it is taken though the device has hardly any room left. It frees some,
            with the next collection of garbage at the latest, or needs next to none.
        is_served_in_restore: whether it is served while an image is restored.
        steps: the steps of a turn that it takes besides those of its frame and its evaluator.
    """

    answer: ClassVar[Any]
    since: ClassVar[int]
    role: ClassVar[Role | None]
    verbs: ClassVar[tuple[Verb, ...]]
    wait_seconds_max: ClassVar[float] = 0.0
    locks: ClassVar[bool] = False
    changes_holdings: ClassVar[bool] = False
    own_ids: ClassVar[tuple[str, ...]] = ()
    may_end_unknown: ClassVar[bool] = False
    frees_room: ClassVar[bool] = False
    is_served_in_restore: ClassVar[bool] = False
    steps: ClassVar[int] = 0

    def concerns(self) -> Concern:
        """Return what it concerns: keys and spans, ranges, or a scope."""
        raise NotImplementedError(type(self).__name__)

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about some of its keys and spans, those of one range."""
        raise NotImplementedError(type(self).__name__)

    def needs(self) -> Iterator[Need]:
        """Yield the rights that it needs: its verbs on all that it concerns.

        A request that does not concern keys needs them on every key and every queue.
        """
        concern = self.concerns()
        for verb in self.verbs:
            if isinstance(concern, KeySet):
                yield Need(verb, concern.keys, concern.spans)
            else:
                yield on_everything(verb)

    def participants(self) -> Iterator[Concern]:
        """Yield everything that it concerns, a transaction all that it reads or writes."""
        yield self.concerns()

    def works_at(self) -> Iterator[KeySet]:
        """Yield the keys and spans at which its work is done, for those that measure loads."""
        concern = self.concerns()
        if isinstance(concern, KeySet):
            yield concern

    def single_keys(self) -> Sequence[bytes] | None:
        """Return all that it concerns, if that is single keys; the first one tells who decides it.

        It costs less than ``participants``, which yield the same, or other things. ``None``: ask
        these.
        """
        return None

    def waits(self) -> bool:
        """Return whether it waits for an event, and not for a turn only."""
        return self.wait_seconds_max == UNTIL_IT_HAPPENS

    def contained(self) -> Iterator[Request]:
        """Yield the request, and those that it contains."""
        yield self

    def needs_no_room(self) -> bool:
        """Return whether it, or everything that it commits, is taken on a full device."""
        return self.frees_room


def on_everything(verb: Verb) -> Need:
    """Return the need of a verb on every key and every queue."""
    return Need(verb, spans=(EVERY_KEY,), queue=EVERY_QUEUE)


class Read(Request, frozen=True):
    """A request that the leaseholder answers from its applied state and its memory.

    Attributes:
        read_at: the name of the field with the timestamp at which it reads, if there is one.
        awaits_earlier: whether it waits for all transactions over several ranges that were prepared
            before it came. It concerns no keys by which those could be told that matter.
    """

    role: ClassVar[Role | None] = Role.READ
    read_at: ClassVar[str] = "timestamp"
    awaits_earlier: ClassVar[bool] = False

    def waits_for_intents(self) -> bool:
        """Return whether it waits for transactions over several ranges that may have committed."""
        return True


class Write(Request, frozen=True):
    """A request inside a transaction.

    Attributes:
        only_checks: whether it writes nothing, and only fails if something has changed.
        is_sent: whether it takes effect after the commit, in whatever range its keys lie. These
            ranges have no part in the transaction.
        is_prepared: whether it may be prepared in another range than that of the anchor.
        is_carried_out_first: whether the commit is answered after other ranges have carried it out,
            since requests that follow there do not wait for it.
        adds_up: whether it may be cut, a part for each range, and the answers of these added up.
        is_of_inbox: whether it concerns the inbox of its key.
    """

    role: ClassVar[Role | None] = Role.WRITE
    only_checks: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    is_prepared: ClassVar[bool] = False
    is_carried_out_first: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False
    is_of_inbox: ClassVar[bool] = False

    def anchor(self) -> bytes:
        """Return the key beside which the COMMIT record of its transaction lies, if it is first."""
        concern = self.concerns()
        if not isinstance(concern, KeySet):
            return b""
        return concern.keys[0] if concern.keys else concern.spans[0][0]

    def participates(self) -> bool:
        """Return whether the ranges of its keys take part in the transaction."""
        return not self.is_sent

    def participant(self) -> Concern:
        """Return what has to lie in ranges that take part in the transaction."""
        return self.concerns()

    def touches(self) -> Touched:
        """Return the key, or the span, for whose lock it waits."""
        return None

    def is_long(self) -> bool:
        """Return whether it may take more than its share of a turn: a generator evaluates it.

        The evaluator of a class without an ``is_long`` of its own is no generator, or a short one.
        """
        return False


def may_be_long(kind: type[Write]) -> bool:
    """Return whether some writes of a class take more than their share of a turn."""
    return kind.is_long is not Write.is_long


class Command(Request, frozen=True):
    """A request that is evaluated into a proposal of its own accord."""

    is_served_in_restore: ClassVar[bool] = True


class Maintenance(Command, frozen=True):
    """A command of the node's own services."""

    role: ClassVar[Role | None] = None
    verbs: ClassVar[tuple[Verb, ...]] = ()


# --- the usual scopes of requests ----------------------------------------------------------------


class ConcernsKey:
    """A request that concerns its field ``key``."""

    __slots__ = ()

    @property
    def key(self) -> bytes:
        """Return the key."""
        raise NotImplementedError

    def concerns(self) -> Concern:
        """Return the key."""
        return KeySet((self.key,))

    def single_keys(self) -> Sequence[bytes] | None:
        """Return the key."""
        return (self.key,) if type(self).concerns is ConcernsKey.concerns else None

    def anchor(self) -> bytes:
        """Return the key."""
        return self.key


class WritesKey(ConcernsKey):
    """A request that writes its field ``key``, for whose lock it waits."""

    __slots__ = ()

    def touches(self) -> Touched:
        """Return the key."""
        return self.key


class ConcernsSpan:
    """A request that concerns the keys between its fields ``start`` and ``end``."""

    __slots__ = ()

    @property
    def start(self) -> bytes:
        """Return the first key."""
        raise NotImplementedError

    @property
    def end(self) -> bytes | None:
        """Return the first key after the span."""
        raise NotImplementedError

    def concerns(self) -> Concern:
        """Return the span."""
        return KeySet(spans=((self.start, self.end),))

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about a piece of the span."""
        ((start, end),) = concern.spans
        narrowed: Self = _replace(self, start=start, end=end)
        return narrowed


class ConcernsKeysAndSpans:
    """A request that concerns the keys and spans in its fields ``keys`` and ``spans``."""

    __slots__ = ()

    @property
    def keys(self) -> list[bytes]:
        """Return the keys."""
        raise NotImplementedError

    @property
    def spans(self) -> list[tuple[bytes, bytes | None]]:
        """Return the spans."""
        raise NotImplementedError

    def concerns(self) -> Concern:
        """Return the keys and spans."""
        return KeySet(tuple(self.keys), tuple(self.spans))

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about some of the keys and spans."""
        narrowed: Self = _replace(self, keys=[*concern.keys], spans=[*concern.spans])
        return narrowed


class ConcernsStore:
    """A request that concerns every range."""

    __slots__ = ()

    def concerns(self) -> Concern:
        """Return the scope."""
        return Scope.WHOLE_STORE


class ConcernsRangesOfIds:
    """A request about records of no key, whose ids begin with those of their ranges."""

    __slots__ = ()

    @property
    def ids(self) -> list[bytes]:
        """Return the ids of the records."""
        raise NotImplementedError

    def concerns(self) -> Concern:
        """Return the ranges; without any id, nothing."""
        found = {id_[:RANGE_ID_BYTES] for id_ in self.ids}
        if not found:
            return KeySet()
        return RangeIds(tuple(sorted(int.from_bytes(each, "big") for each in found)))


class ConcernsRoot:
    """A request about records of which the store has one each: nodes, queues, positions."""

    __slots__ = ()

    def concerns(self) -> Concern:
        """Return the scope."""
        return Scope.ROOT


class ConcernsRange:
    """A request of a service of a range, about that range."""

    __slots__ = ()

    def concerns(self) -> Concern:
        """Return the scope."""
        return Scope.RANGE


class ConcernsNode:
    """A request that any node answers about itself."""

    __slots__ = ()

    def concerns(self) -> Concern:
        """Return the scope."""
        return Scope.NODE


class NeedsQueue:
    """A request that needs its verbs on the queue that its field ``queue`` names."""

    __slots__ = ()
    verbs: ClassVar[tuple[Verb, ...]]

    @property
    def queue(self) -> str:
        """Return the name of the queue."""
        raise NotImplementedError

    def needs(self) -> Iterator[Need]:
        """Yield the rights on the queue."""
        for verb in self.verbs:
            yield Need(verb, queue=self.queue)


class NeedsEverything:
    """A request that needs its verbs on every key and every queue, whatever it concerns."""

    __slots__ = ()
    verbs: ClassVar[tuple[Verb, ...]]

    def needs(self) -> Iterator[Need]:
        """Yield the rights on everything."""
        return map(on_everything, self.verbs)


class MayWait:
    """A request that waits at a node until it can be answered, if its field ``wait`` says so."""

    __slots__ = ()
    wait_seconds_max: ClassVar[float] = UNTIL_IT_HAPPENS

    @property
    def wait(self) -> bool:
        """Return whether it waits."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Return whether it waits for an event."""
        return self.wait
