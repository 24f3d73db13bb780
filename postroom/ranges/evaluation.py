"""The material of evaluators: reads through a *view*, writes into an *evaluation*.

The leaseholder evaluates once: requests become raw writes, the group replicates those, and every
replica applies them alike. Requests that arrive while a proposal is under way
are evaluated together into the next one, in order, each seeing the writes of those before it.

::

    request ── begin(timestamp) ── evaluator reads and writes ──┬── accept   joins the proposal
                                                               └── reject   leaves no trace

Reads see only what is applied. A read raises ``Blocked`` if it touches a key which the proposal
under way writes, and is evaluated again once that is applied. This is the only waiting inside a
range. If a reader has to wait for something else (a lock, a message), it names that by a token in
``MustWait``.

An evaluator that may be long counts its *steps* (about: keys visited). A turn evaluates no more
than ``TURN_STEPS_MAX`` of them. An evaluator that needs more is a generator, which yields whenever
the turn is used up, and goes on in the next one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

from postroom import limits
from postroom.errors import TransactionTooLarge
from postroom.kv import keys, versions
from postroom.kv.cache import Cache
from postroom.kv.engine import MANY, Reader, WriteSet, join
from postroom.limits import COMMAND_BYTES_MAX, TRANSACTION_BYTES_MAX


class Blocked(Exception):
    """The read touches what the proposal under way writes."""


class Postponed(Exception):
    """The read is evaluated again in a turn: the clock has been behind its timestamp."""


class MustWait(Exception):
    """The request can be answered only after ``token`` is woken.

    All requests that wait for one token are alike: if one of them must wait, so must the others,
    unless the token is *shared* (:mod:`.waiting`).
    """

    def __init__(self, token: object) -> None:
        super().__init__(token)
        self.token = token


LONG_SHARE: Final = 8
"""The parts of a turn. A request that can go over turns has one of them: reads wait for its end."""
_UNKNOWN: Final[Any] = object()
_NOTHING: Final[WriteSet] = {}
_NO_KEYS: Final[list[bytes]] = []
_NO_TALLY: Final[dict[str, int]] = {}
_AT_THE_BEGINNING: Final = (0, 0, 0, 0, 0)

_FEW: Final = 64
"""The number of keys that are looked through faster than they are sorted."""


class View:
    """The applied state as reads see it, but for what the proposal under way writes.

    Attributes:
        in_flight: the raw writes of the proposal under way.
        now: the timestamp at which the request under evaluation arrived; reads newest at it.
        before: while an evaluation goes over several turns: the timestamp before it. Later writes
            are not known yet; 0: nothing is under evaluation.
        steps: the number of steps that this turn's reads have taken.
        reserved: the number of a turn's steps that are for later.
        gaps: the spans in which there are only deleted keys.
    """

    __slots__ = (
        "_reader", "_sorted", "_sorted_of", "before", "gaps", "in_flight", "now", "reserved",
        "steps",
    )  # fmt: skip

    def __init__(self, reader: Cache) -> None:
        self._reader = reader
        self.gaps = reader.gaps
        self.in_flight: Mapping[bytes, bytes | None] = {}
        self.now = 0
        self.before = 0
        self.steps = self.reserved = 0
        self._sorted: list[bytes] = []
        self._sorted_of: Mapping[bytes, bytes | None] = self.in_flight

    def is_used_up(self) -> bool:
        """Return whether reads have had their share of this turn."""
        return self.steps + self.reserved >= limits.TURN_STEPS_MAX

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of an engine key."""
        if key in self.in_flight:
            raise Blocked
        return self._reader.get(key)

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the engine's pairs in a span."""
        if self.in_flight and self._is_in_flight(lower, upper):
            raise Blocked
        return self._reader.iterate(lower, upper, reverse=reverse)

    def _is_in_flight(self, lower: bytes, upper: bytes) -> bool:
        """Return whether the proposal under way writes in a span.

        Each of many reads asks this.
        """
        if len(self.in_flight) < _FEW:
            return any(lower <= key < upper for key in self.in_flight)
        if self._sorted_of is not self.in_flight:
            self._sorted, self._sorted_of = sorted(self.in_flight), self.in_flight
        first = bisect_left(self._sorted, lower)
        return first < len(self._sorted) and self._sorted[first] < upper


def yields_at(steps: int) -> int:
    """Return the number of steps at which a request that can go over turns yields.

    Args:
        steps: the number of steps of the turn before it goes on.
    """
    return min(steps + max(limits.TURN_STEPS_MAX // LONG_SHARE, 1), limits.TURN_STEPS_MAX)


class Evaluation:
    """One proposal in the making.

    Attributes:
        range_id: the id of the range.
        timestamp: the commit timestamp of the request under evaluation; ``stamp``: its stored form.
        transaction_id: the id of the transaction under evaluation.
        source: its anchor key.
        writes: the raw writes of the request under evaluation; evaluators write here.
        tally: named numbers, which the companion turns into records (counters).
        staged: the raw writes of the requests accepted so far.
        sent: the messages, and ``deferred``: the updates in the outboxes of the transactions
            accepted so far, which the companion takes up.
        notes: the notes that evaluators leave for the companion.
        garbage: the engine keys that are obsolete once the proposal is applied.
        bytes: the size of the requests' writes; ``moved``: that of what they overwrite and keep.
        steps: the number of steps in this turn; ``steps_before``: in earlier ones.
        yields_at: the number of steps at which a request that can go over turns yields.
        began: the timestamp of the first request.
        last_commit: the timestamp of the last request that wrote.
        after: the actions to take on the leaseholder once the proposal is applied.
        sums: the sums of the companion after the proposal, packed; ``None``: as before.
        scratch: the memory of evaluators while the proposal is in the making.
    """

    __slots__ = (
        "_earlier",
        "_erased",
        "_index",
        "_look_up",
        "_moved_before",
        "_own",
        "_own_of",
        "_reader",
        "_request_tally",
        "_savepoint",
        "_step_savepoint",
        "_step_tally",
        "_unindexed",
        "after",
        "began",
        "bytes",
        "deferred",
        "garbage",
        "last_commit",
        "moved",
        "notes",
        "ordinal",
        "range_id",
        "scratch",
        "sent",
        "source",
        "staged",
        "stamp",
        "steps",
        "steps_before",
        "sums",
        "tally",
        "timestamp",
        "transaction_id",
        "writes",
        "yields_at",
    )

    def __init__(self, reader: Reader, range_id: int, last_commit: int) -> None:
        self._reader = reader
        self._look_up = reader.look_up if isinstance(reader, Cache) else reader.get
        self.range_id = range_id
        self.last_commit = last_commit
        self.staged: WriteSet = {}
        self.writes: WriteSet = {}
        self.garbage: list[bytes] = []
        self.tally: dict[str, int] = {}
        self.sent: list[Any] = []
        self.deferred: list[Any] = []
        self.notes: list[Any] = []
        self.after: list[Callable[[], None]] = []
        self.sums: bytes | None = None
        self.scratch: dict[object, Any] = {}
        self.bytes = 0
        # Empty as a rule, and never changed in place while they are: one for all saves making them.
        self._earlier: WriteSet = _NOTHING
        self._request_tally: dict[str, int] = _NO_TALLY
        self._erased: list[bytes] = _NO_KEYS
        self.steps = self.steps_before = 0
        self.yields_at = limits.TURN_STEPS_MAX
        self.moved = self._moved_before = 0
        self.began = 0
        self._index: list[bytes] = _NO_KEYS
        self._unindexed: list[WriteSet | list[bytes]] = []
        self._own: list[bytes] = _NO_KEYS
        self._own_of: WriteSet = _NOTHING

    # --- one request after the other

    def begin(self, timestamp: int) -> None:
        """Begin the next request, at a fresh timestamp."""
        self.timestamp = timestamp
        self.stamp = timestamp.to_bytes(8, "big")
        self.transaction_id = self.source = b""
        self.ordinal = 0
        self._moved_before = self.moved
        self.writes = {}
        self._earlier = _NOTHING
        self._request_tally = _NO_TALLY
        self._erased = _NO_KEYS
        if self.began:
            self._savepoint = (
                len(self.garbage), len(self.after), len(self.sent), len(self.deferred),
                len(self.notes),
            )  # fmt: skip
        else:
            self.began, self._savepoint = timestamp, _AT_THE_BEGINNING

    def go_along(self, timestamp: int) -> None:
        """Begin what goes along with the requests: like one more of them, but never rejected."""
        self.timestamp, self.stamp = timestamp, timestamp.to_bytes(8, "big")
        self.transaction_id = self.source = b""
        self.ordinal, self._moved_before = 0, self.moved
        self.writes = {}
        self._earlier, self._erased = _NOTHING, _NO_KEYS
        self._request_tally = _NO_TALLY

    def take_up(self, staged: WriteSet, began: int, last: int) -> None:
        """Take up the writes of requests that were evaluated elsewhere.

        Args:
            staged: their raw writes.
            began: the timestamp of the first one.
            last: the timestamp of the last one.
        """
        self.begin(began)
        self.begin(last)
        self.staged = staged
        self._unindexed.append(staged)

    def accept(self) -> None:
        """Add the writes of the request to the proposal."""
        writes = self.writes
        if self._earlier:
            self.staged.update(self._earlier)
            self._unindexed.append(self._earlier)
        if writes or self._erased or self._earlier:
            if len(writes) < MANY:
                self.staged.update(writes)
            else:
                join(self.staged, writes)
            self._unindexed.append(writes)
            self.last_commit = self.timestamp
        if self._erased:
            self._unindexed.append(self._erased)
            for key in self._erased:
                if self.staged.pop(key, None) is None:
                    self.staged[key] = None
        if self._request_tally:
            self._add_tally()

    def _add_tally(self) -> None:
        tally, more = self.tally, self._request_tally
        if not tally:
            self.tally, self._request_tally = more, _NO_TALLY
            return
        for name, number in more.items():
            tally[name] = tally.get(name, 0) + number

    def sum_up(self) -> None:
        """Begin to sum up the requests, which are all accepted.

        The timestamp is that of the last one that wrote.
        """
        if self.timestamp != self.last_commit:
            self.timestamp = self.last_commit
            self.stamp = self.timestamp.to_bytes(8, "big")
        self.transaction_id = self.source = b""
        self.writes = {}
        self._earlier, self._erased = _NOTHING, _NO_KEYS
        self._request_tally = _NO_TALLY

    def reject(self) -> None:
        """Forget the request, which has failed."""
        garbage, after, sent, deferred, notes = self._savepoint
        del self.garbage[garbage:]
        del self.after[after:]
        del self.sent[sent:]
        del self.deferred[deferred:]
        del self.notes[notes:]

    def begin_step(self) -> None:
        """Begin a part of the request that may fail by itself."""
        if self.writes:
            if self._earlier:
                self._earlier.update(self.writes)
            else:
                self._earlier = self.writes
            self.writes = {}
        self._step_savepoint = len(self.garbage), len(self.after), len(self.notes)
        self._step_tally = dict(self._request_tally)

    def undo_step(self) -> None:
        """Forget that part, which has failed."""
        self.writes = {}
        garbage, after, notes = self._step_savepoint
        del self.garbage[garbage:]
        del self.after[after:]
        del self.notes[notes:]
        self._request_tally = self._step_tally

    def all_writes(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Return the raw writes of the request under evaluation, and of its parts before."""
        return chain(self._earlier.items(), self.writes.items())

    def sent_before(self) -> int:
        """Return the number of those ``sent`` by transactions accepted before.

        They are not undone.
        """
        return self._savepoint[2]

    def go_on(self) -> None:
        """Begin a further turn. After the steps of a whole turn, the cache gets no further keys."""
        self.steps_before += self.steps
        self.steps = 0
        if self.steps_before >= limits.TURN_STEPS_MAX and isinstance(self._reader, Cache):
            self._look_up = self._reader.look_up_once

    def is_used_up(self) -> bool:
        """Return whether the turn is used up: an evaluator with more to do yields."""
        return self.steps >= self.yields_at

    def sees_key(self, key: bytes) -> None:
        """Do nothing: later writes are in ``staged``, unlike in :class:`.CheckedReads`."""

    def sees_span(self, start: bytes, end: bytes | None) -> None:
        """Do nothing: later writes are in ``staged``."""

    # --- reading

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of an engine key, as this and earlier requests have left it."""
        if key in self.writes:
            return self.writes[key]
        if key in self._earlier:
            return self._earlier[key]
        if key in self.staged:
            return self.staged[key]
        return self._look_up(key)

    def get_once(self, key: bytes) -> bytes | None:
        """Return the value of a key that will hardly be asked for again."""
        value = self._pending(key)
        return self.get_stored(key) if value is _UNKNOWN else value

    def is_deleted(self, key: bytes) -> bool:
        """Return whether this or an earlier request has deleted an engine key, without reading."""
        return self._pending(key) is None

    def is_written(self, key: bytes) -> bool:
        """Return whether they have written it, and not deleted it since, without reading."""
        value = self._pending(key)
        return value is not None and value is not _UNKNOWN

    def _pending(self, key: bytes) -> bytes | None:
        value = self.writes.get(key, _UNKNOWN)
        if value is _UNKNOWN and self._earlier:
            value = self._earlier.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self.staged.get(key, _UNKNOWN)
        return value  # type: ignore[no-any-return]  # a sentinel stands for "not known"

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the pairs in a span, with the writes of this moment."""
        overlay = self._overlay(lower, upper)
        stored = self._reader.iterate(lower, upper, reverse=reverse)
        return merged(stored, overlay, reverse=reverse) if overlay else stored

    def written(self, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the engine keys in a span that this and earlier requests have written, sorted."""
        self.steps += (len(self._earlier) + len(self.writes)) // 16
        return sorted(self._overlay(lower, upper))

    def stored(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the pairs in a span without those writes."""
        return self._reader.iterate(lower, upper, reverse=reverse)

    def get_stored(self, key: bytes) -> bytes | None:
        """Return the value of an engine key without those writes; it is not kept in memory."""
        reader = self._reader
        return reader.get_once(key) if isinstance(reader, Cache) else reader.get(key)

    def _staged_in(self, lower: bytes, upper: bytes) -> WriteSet:
        """Return the staged writes in a span.

        A transaction may ask for many spans: the keys are sorted once.
        """
        staged = self.staged
        if len(staged) < _FEW:
            return {k: v for k, v in staged.items() if lower <= k < upper}
        index, unindexed = self._index, self._unindexed
        if unindexed:
            if not index:
                self._index = index = []
            index += [key for written in unindexed for key in written]
            index.sort()  # mostly it is sorted already: what is new is merged in
            unindexed.clear()
        first = bisect_left(index, lower)
        found = index[first : bisect_left(index, upper, first)]
        return {key: staged[key] for key in found if key in staged}

    def _overlay(self, lower: bytes, upper: bytes) -> WriteSet:
        overlay = self._staged_in(lower, upper)
        if self._earlier:
            overlay.update((k, v) for k, v in self._earlier.items() if lower <= k < upper)
        writes = self.writes
        if len(writes) < _FEW:
            overlay.update((k, v) for k, v in writes.items() if lower <= k < upper)
            return overlay
        own = self._own_sorted()
        first = bisect_left(own, lower)
        for key in own[first : bisect_left(own, upper, first)]:
            overlay[key] = writes[key]
        return overlay

    def _own_sorted(self) -> list[bytes]:
        """Return the keys of ``writes``, sorted.

        One request may ask for as many spans as it writes keys: those that it has written since
        are put in their places. No key is ever taken out.
        """
        writes, own = self.writes, self._own
        if self._own_of is not writes:
            own, self._own_of = [], writes
            self._own = own
        new = len(writes) - len(own)
        if new > _FEW:
            own += islice(reversed(writes), new)
            own.sort()
        else:
            for key in islice(reversed(writes), new):
                insort(own, key)
        return own

    # --- writing

    def put_version(self, head: bytes, old: bytes | None, kind: bytes, value: bytes = b"") -> None:
        """Make ``value`` (or a tombstone) the newest version of a user key.

        Args:
            head: the engine key of the newest version.
            old: the value there (``get``): an evaluator has looked already, as a rule.
            kind: the kind of the value.
            value: the new one.
        """
        stamp, writes = self.stamp, self.writes
        if old is not None and (before := old[1:9]) != stamp:
            history = keys.history_key(head, before)
            writes[history] = old
            self.moved += len(old)
            if self.moved - self._moved_before > COMMAND_BYTES_MAX:
                raise too_much_moved()
            self.garbage.append(history)
        writes[head] = kind + stamp + value
        self.steps += 1
        self.bytes += len(value) + 2 * len(head) + WRITE_BYTES

    def delete_version(self, head: bytes, old: bytes | None) -> bool:
        """Put a tombstone over a user key; return false if there was nothing to delete.

        Args:
            head: the engine key of the newest version.
            old: the value there.
        """
        if versions.payload(old) is None:
            return False
        self.put_version(head, old, versions.TOMBSTONE_KIND)
        self.garbage.append(head)
        self.grow(2 * len(head))
        return True

    def erase(self, key: bytes) -> None:
        """Delete an engine key that is written only once.

        If this very proposal wrote it, nothing is left to write, not even the deletion.
        """
        if self._erased:
            self._erased.append(key)
        else:
            self._erased = [key]

    def grow(self, size: int) -> None:
        """Count ``size`` bytes towards the proposal and the transaction's limit."""
        self.bytes += size

    def count(self, name: str, number: int = 1) -> None:
        """Add a number to the tally of this request."""
        tally = self._request_tally
        if tally:
            tally[name] = tally.get(name, 0) + number
        else:
            self._request_tally = {name: number}

    def next_ordinal(self) -> bytes:
        """Return the ordinal of the next message in its transaction, as stored."""
        return self.next_number().to_bytes(4, "big")

    def next_number(self) -> int:
        """Return the ordinal of the next message in its transaction."""
        self.ordinal += 1
        return self.ordinal


class TrialEvaluation(Evaluation):
    """An evaluation on top of a proposal, of which nothing but the answers is kept.

    It shares the memory of evaluators with the proposal (``scratch``): whatever they note there
    counts only if what they write is kept.
    """

    __slots__ = ("_below",)

    def __init__(self, below: Evaluation) -> None:
        super().__init__(below, below.range_id, below.last_commit)
        self.begin(below.timestamp)
        self.scratch = below.scratch
        self._below = below

    def _pending(self, key: bytes) -> bytes | None:
        value = super()._pending(key)
        return self._below._pending(key) if value is _UNKNOWN else value


WRITE_BYTES: Final = 16
"""The cost of a write beside its bytes, as it counts towards a transaction's limit."""


_SMALLER: Final = (
    "do the work in smaller transactions (db.delete_range, and "
    "tx.enqueue_update(DeleteRange(start, end)), delete any number of keys)"
)


def check_size(bytes_used: int, what_to_do: str = _SMALLER) -> None:
    """Refuse a transaction that is over the limit of bytes.

    Raises:
        TransactionTooLarge: with the limit, and what to do.
    """
    if bytes_used > TRANSACTION_BYTES_MAX:
        raise TransactionTooLarge(
            f"the transaction writes {bytes_used} bytes, more than the limit of "
            f"{TRANSACTION_BYTES_MAX}; nothing was changed: {what_to_do}"
        )


def too_much_moved() -> TransactionTooLarge:
    """Return the error of a transaction that would make too large a command."""
    return TransactionTooLarge(
        "with what it overwrites or moves, the transaction comes to more than the "
        f"{COMMAND_BYTES_MAX} bytes of a command; nothing was changed: {_SMALLER}"
    )


def merged(
    stored: Iterator[tuple[bytes, bytes]], overlay: WriteSet, *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over stored pairs, in order, with the writes over them."""
    added = sorted(
        ((k, v) for k, v in overlay.items() if v is not None), key=itemgetter(0), reverse=reverse
    )
    kept = (pair for pair in stored if pair[0] not in overlay)
    return heapq.merge(kept, added, key=itemgetter(0), reverse=reverse)
