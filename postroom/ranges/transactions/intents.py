"""The intents of a range: what transactions over several ranges have read here, or will write.

A participant stores a *prepared record* for each transaction. It is not among the data, and nothing
of it shows there until the transaction is resolved. A table in memory has the keys of all records.
It is built with the lease, and every request looks at it::

    a reader       waits for intents to write what it reads, if they may commit at its timestamp
    a writer       waits for all intents of others that have read the key, or will write it
    a transaction  is a reader of what it has read, and a writer of what it writes

A record of what was only read keeps writers away, as well: nothing that the transaction has read
changes before it commits. The timestamp of its commit therefore needs no upper bound.

An intent is in the table from the evaluation of its proposal on, so that later requests of the same
proposal see it. Until that proposal is applied, readers wait for its end. An intent that a proposal
ends leaves the table with the evaluation; what it writes is hidden from readers like other writes.
If no proposal comes of the evaluation, the table is built again.

Commits and ``Prepare`` that wait for an intent go on as soon as its end is evaluated, as if they
came then. Else others that do come then would be prepared before them, and an older transaction
would wound each of these in vain. Commits go first: once evaluated, they keep nobody away. Then
follow ``Prepare``, the oldest first: the others wait for it, and do not wound it. A reader goes on
when the end is applied. It may meet what was prepared meanwhile, and passes by it as soon as the
anchor has told that it commits later.

Invariants:

* The intents are in the order of their timestamps.
* A commit at a timestamp above ``limit`` may still be missing among the versions; none below is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.ranges.calls import Call
from postroom.ranges.contract import KeySet
from postroom.ranges.evaluation import Blocked
from postroom.ranges.locks import LockedKeys
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.transactions.closed_keys import ClosedKeys
from postroom.ranges.transactions.requests import Ballot, Prepare
from postroom.ranges.waiting import Spans, UserSpan

Span: TypeAlias = tuple[bytes, bytes | None]

Age: TypeAlias = tuple[int, bytes]
"""The timestamp at which a transaction began, and its id."""

NO_AGE: Final = 0, b""
AT_THE_END: Final = 1 << 64
"""A timestamp above all others: a reader at it waits until an intent has ended."""


class PreparedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A prepared record, as it is stored.

    Attributes:
        ballot: the run of the commit.
        anchor: the key that decides about it.
        timestamp: a timestamp that it does not commit below.
        began: when the transaction began.
        reads, spans: the keys and spans that it has read.
        written, written_spans: those that it will write.
        inboxes: the keys in whose inboxes it has found, or not found, messages.
        answers: the answers of its writes.
        writes: the writes, packed.
    """

    ballot: Ballot
    anchor: bytes
    timestamp: int
    began: int
    reads: list[bytes]
    spans: list[Span]
    written: list[bytes]
    written_spans: list[Span]
    inboxes: list[bytes]
    answers: list[Any]
    writes: msgspec.Raw


encode_record: Final = msgspec.msgpack.Encoder().encode
decode_record: Final = msgspec.msgpack.Decoder(PreparedRecord).decode


class Intent:
    """A prepared record in memory, without large values that it will write.

    Attributes:
        transaction_id: the id of the transaction.
        ballot, anchor, timestamp, began, answers: see :class:`PreparedRecord`.
        reads, written, inboxes: the keys; ``spans``, ``written_spans``: the spans.
        size_bytes: the size of the stored record.
        above: a timestamp at or above which it may commit. The anchor may raise it.
        since: when it came into the table, on the monotonic clock.
        is_applied: whether its record is applied.
        writes: its writes, if they are few bytes; ``None``: they are in the stored record alone.
        waiting: the calls that wait for it, with what they have met.
    """

    __slots__ = (
        "above", "anchor", "answers", "ballot", "began", "inboxes", "is_applied", "reads", "since",
        "size_bytes", "spans", "timestamp", "transaction_id", "waiting", "writes", "written",
        "written_spans",
    )  # fmt: skip

    def __init__(
        self, transaction_id: bytes, record: PreparedRecord, size_bytes: int, since: float
    ) -> None:
        self.transaction_id = transaction_id
        self.ballot, self.anchor = record.ballot, record.anchor
        self.timestamp = self.above = record.timestamp
        self.began, self.answers = record.began, record.answers
        self.reads = tuple(dict.fromkeys(record.reads)) if record.reads else ()
        self.written = tuple(dict.fromkeys(record.written)) if record.written else ()
        self.inboxes = tuple(dict.fromkeys(record.inboxes)) if record.inboxes else ()
        self.spans = _user_spans(record.spans) if record.spans else ()
        self.written_spans = _user_spans(record.written_spans) if record.written_spans else ()
        self.size_bytes = size_bytes
        self.since = since
        self.is_applied = True
        self.writes: list[Any] | None = None
        self.waiting: dict[Call, MeetsIntent] = {}


def _user_spans(spans: list[Span]) -> tuple[UserSpan, ...]:
    return tuple(UserSpan(*span) for span in dict.fromkeys(spans))


class MeetsIntent(Exception):
    """The request has to wait for a transaction that is prepared here.

    Attributes:
        intent: the intent that it has met.
        at: the timestamp at which it reads; ``AT_THE_END``: it goes on when the intent has ended.
        age: when the transaction that waits began, and its id; ``NO_AGE``: it kills none.
        since: when it began to wait, on the monotonic clock.
    """

    def __init__(self, intent: Intent, at: int = AT_THE_END, age: Age = NO_AGE) -> None:
        super().__init__(intent.transaction_id)
        self.intent = intent
        self.at = at
        self.age = age
        self.since = 0.0


class _Holders:
    """The intents by what they have in common: keys and spans of one kind."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, dict[bytes, Intent]] = {}
        self._by_span: dict[UserSpan, dict[bytes, Intent]] = {}
        self._keys = LockedKeys(self.by_key)
        self._spans = Spans()

    def clear(self) -> None:
        """Forget all."""
        self.by_key.clear()
        self._by_span.clear()
        self._keys.shrink()
        self._spans.clear()

    def add(self, intent: Intent, names: Iterable[bytes], spans: Iterable[UserSpan]) -> None:
        """Add an intent."""
        for key in names:
            if key not in self.by_key:
                self._keys.add(key)
            self.by_key.setdefault(key, {})[intent.transaction_id] = intent
        for span in spans:
            if span not in self._by_span:
                self._spans.add(span)
            self._by_span.setdefault(span, {})[intent.transaction_id] = intent

    def remove(self, intent: Intent, names: Iterable[bytes], spans: Iterable[UserSpan]) -> None:
        """Remove an intent."""
        for key in names:
            of_key = self.by_key[key]
            del of_key[intent.transaction_id]
            if not of_key:
                del self.by_key[key]
        for span in spans:
            of_span = self._by_span[span]
            del of_span[intent.transaction_id]
            if not of_span:
                del self._by_span[span]
                self._spans.remove(span)
        self._keys.shrink()

    def of_key(self, key: bytes) -> Iterator[Intent]:
        """Iterate over the intents that contain a key."""
        yield from self.by_key.get(key, {}).values()
        if self._by_span:
            for span in self._spans.holding(key):
                yield from self._by_span[span].values()

    def of_another(
        self, names: Sequence[bytes], spans: Sequence[Span], own: bytes
    ) -> Intent | None:
        """Return an intent of another transaction with any of some keys and spans; else ``None``.

        Args:
            names: the keys.
            spans: the spans.
            own: the id of the transaction whose intents do not count.
        """
        by_key, has_spans = self.by_key, bool(self._by_span)
        for key in names:
            if has_spans or key in by_key:
                for intent in self.of_key(key):
                    if intent.transaction_id != own:
                        return intent
        for span in spans:
            for intent in self.of_span(*span):
                if intent.transaction_id != own:
                    return intent
        return None

    def of_span(self, start: bytes, end: bytes | None) -> Iterator[Intent]:
        """Iterate over the intents that have a key in common with a span."""
        for key in self._keys.within(start, end):
            yield from self.by_key[key].values()
        for span, intents in self._by_span.items():
            if (span.end is None or start < span.end) and (end is None or span.start < end):
                yield from intents.values()


class IntentTable:
    """The intents of one range; see the module. Its truth is whether there is any.

    Args:
        range_id: the id of the range.
        monotonic: a function that returns seconds that never go back.

    Attributes:
        by_transaction: the intents, in the order of their timestamps. Only to look at.
        going: those whose end is evaluated, and not applied yet. Only to look at.
        met: those for which calls wait, or have waited.
        size_bytes: the size of all records.
        resume: a function that takes calls which are to be evaluated again.
        resume_at: a function that takes a read which is to be evaluated at a timestamp.
        on_met: called when a call waits for an intent, or a split for some of them.
        freed: the calls that waited for intents that have gone, until they go on.
        closed: the keys for which no further ones are prepared.
        has_changed: whether evaluations have added or removed intents since it was built.
    """

    def __init__(self, range_id: int, monotonic: Callable[[], float]) -> None:
        self._prefix = keys.prepared_prefix(range_id)
        self._monotonic = monotonic
        self.by_transaction: dict[bytes, Intent] = {}
        self.met: dict[Intent, None] = {}
        self.size_bytes = 0
        self.resume: Callable[[list[Call]], None] = lambda _: None
        self.resume_at: Callable[[Call, int], None] = lambda _, __: None
        self.on_met: Callable[[], None] = lambda: None
        self.freed: list[Call] = []
        self.closed = ClosedKeys(monotonic)
        self._writers = _Holders()
        self._readers = _Holders()
        self._inboxes = _Holders()
        self.going: dict[bytes, Intent] = {}
        self._is_in_disorder = False
        self.has_changed = False

    def __len__(self) -> int:
        return len(self.by_transaction)

    def waiting(self) -> int:
        """Return the number of calls that wait."""
        return sum(len(intent.waiting) for intent in self.under_way())

    # --- with the lease

    def restart(self, stored: Reader) -> None:
        """Begin from what is stored. Calls go on waiting for the intents that are still there."""
        known = {**self.going, **self.by_transaction}
        self.clear()
        found = [
            (decode_record(packed), raw, len(packed))
            for raw, packed in stored.iterate(self._prefix, keys.after_prefix(self._prefix))
        ]
        now = self._monotonic()
        for record, raw, size in sorted(found, key=lambda each: each[0].timestamp):
            intent = Intent(raw[len(self._prefix) :], record, size, now)
            self._add(intent)
            if intent.transaction_id in known:
                intent.waiting = known[intent.transaction_id].waiting
                if intent.waiting:
                    self.met[intent] = None

    def clear(self) -> None:
        """Forget all intents. Calls that wait for them are taken out first."""
        self.by_transaction.clear()
        self.met.clear()
        self.going.clear()
        for each in (self._writers, self._readers, self._inboxes):
            each.clear()
        self.size_bytes = 0
        self.has_changed = False

    # --- intents that come and go

    def record_key(self, transaction_id: bytes) -> bytes:
        """Return the engine key of the record of a transaction."""
        return self._prefix + transaction_id

    def add(self, transaction_id: bytes, record: PreparedRecord, size_bytes: int) -> Intent:
        """Add an intent, whose record a proposal under evaluation writes; and return it."""
        intent = Intent(transaction_id, record, size_bytes, self._monotonic())
        intent.is_applied = False
        self.has_changed = True
        self._add(intent)
        return intent

    def _add(self, intent: Intent) -> None:
        self.by_transaction[intent.transaction_id] = intent
        self.size_bytes += intent.size_bytes
        if intent.written or intent.written_spans:
            self._writers.add(intent, intent.written, intent.written_spans)
        if intent.reads or intent.spans:
            self._readers.add(intent, intent.reads, intent.spans)
        if intent.inboxes:
            self._inboxes.add(intent, intent.inboxes, ())

    def remove(self, intent: Intent) -> None:
        """Remove an intent that a proposal under evaluation ends."""
        del self.by_transaction[intent.transaction_id]
        self.met.pop(intent, None)
        self.size_bytes -= intent.size_bytes
        if intent.written or intent.written_spans:
            self._writers.remove(intent, intent.written, intent.written_spans)
        if intent.reads or intent.spans:
            self._readers.remove(intent, intent.reads, intent.spans)
        if intent.inboxes:
            self._inboxes.remove(intent, intent.inboxes, ())
        self.going[intent.transaction_id] = intent
        self.has_changed = True
        self._is_in_disorder = True
        if intent.waiting:
            self._let_writers_go_on(intent)

    def _let_writers_go_on(self, intent: Intent) -> None:
        """Take the commits, and parts of commits, again that wait for an intent."""
        calls = [call for call in intent.waiting if type(call.request) in _WRITERS]
        for call in calls:
            del intent.waiting[call]
        calls.sort(key=_age_of_preparation)
        self.resume(calls)

    def gone(self, intent: Intent) -> None:
        """Free the others that wait for an intent, since its end is applied; see ``go_on``."""
        self.going.pop(intent.transaction_id, None)
        self.freed += intent.waiting
        intent.waiting = {}

    def go_on(self) -> None:
        """Take the freed calls again. Memory must know all of the proposal that freed them."""
        calls, self.freed = self.freed, []
        self.resume(calls)

    def raised(self, intent: Intent, above: int) -> None:
        """Note that an intent commits at or above a timestamp, if at all; let readers go on."""
        if above <= intent.above:
            return
        intent.above = above
        for call, met in list(intent.waiting.items()):
            if met.at < above and intent.waiting.pop(call, None) is not None:
                self.resume_at(call, met.at)

    # --- completeness

    def limit(self, timestamp: int) -> int:
        """Return ``timestamp``, or the last one before it below which no commit is missing."""
        if not self.by_transaction and not self.going:
            return timestamp
        first = islice(self.by_transaction.values(), 1)
        least = min(intent.timestamp for intent in chain(first, self.going.values()))
        return min(timestamp, least - 1)

    def takes_disorder(self) -> bool:
        """Return whether a commit may be below earlier ones, or more can be told, since then."""
        found, self._is_in_disorder = self._is_in_disorder, False
        return found or bool(self.by_transaction)

    # --- requests that meet them

    def check_reader(self, concern: KeySet, at: int, age: Age = NO_AGE) -> None:
        """Let a reader wait for intents to write what it reads.

        Args:
            concern: the keys and spans that it reads.
            at: the timestamp; ``AT_THE_END``: it must know everything.
            age: when its transaction began, and the id of that.

        Raises:
            MeetsIntent: it has to wait.
            Blocked: an intent is not applied yet.
        """
        for intent in self._that_hold(self._writers, concern):
            if intent.above <= at:
                if not intent.is_applied:
                    raise Blocked
                raise MeetsIntent(intent, at, age)

    def check_earlier(self, at: int) -> None:
        """Let a reader wait for the end of all intents up to a timestamp.

        Raises:
            MeetsIntent: it has to wait.
            Blocked: the end of an intent, or its record, is not applied yet.
        """
        first = next(iter(self.by_transaction.values()), None)
        if first is not None and first.timestamp <= at and first.is_applied:
            raise MeetsIntent(first)
        if self.limit(at) < at:
            raise Blocked

    def check_transaction(self, request: CommitTransaction[Any] | Prepare[Any]) -> None:
        """Let a transaction wait for intents of others, as a reader and as a writer.

        Raises:
            MeetsIntent: it has to wait.
        """
        if not self.by_transaction:
            return
        own, writers, readers = request.transaction_id, self._writers, self._readers
        met = writers.of_another(request.reads, request.spans, own)
        for write in request.writes:
            if met is not None:
                break
            if not write.participates():
                continue
            spans: Sequence[Span] = ()
            names = write.single_keys()
            if names is None:
                concern = write.concerns()
                if not isinstance(concern, KeySet):
                    continue
                names, spans = concern
            met = writers.of_another(names, spans, own) or readers.of_another(names, spans, own)
        if met is not None:
            raise MeetsIntent(met, age=(request.began, own))

    def check_writer(self, concern: KeySet) -> None:
        """Let a writer wait that belongs to no transaction.

        Raises:
            MeetsIntent: it has to wait.
        """
        for holders in (self._writers, self._readers):
            for intent in self._that_hold(holders, concern):
                raise MeetsIntent(intent)

    def keeps_away(self, concern: KeySet) -> bool:
        """Return whether nothing may be written to some keys and spans."""
        return any(
            next(self._that_hold(holders, concern), None) is not None
            for holders in (self._writers, self._readers)
        )

    def will_write(self, key: bytes) -> bool:
        """Return whether a transaction is prepared that will write a key."""
        return bool(self.by_transaction) and next(self._writers.of_key(key), None) is not None

    def keeps_mail_away(self, key: bytes) -> bool:
        """Return whether no message may come into an inbox, or leave it."""
        return key in self._inboxes.by_key

    def check_written(self, raw_keys: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Let a request wait whose raw writes meet intents: any but a transaction's.

        Versions that are collected change nothing.

        Raises:
            MeetsIntent: it has to wait.
        """
        for raw, stored in raw_keys:
            if raw[:1] != keys.DATA:
                continue
            suffix = raw[raw.index(keys.END_OF_KEY, 1) + 2 :][:1]
            if suffix == keys.INBOX:
                for intent in self._inboxes.by_key.get(keys.user_key(raw), {}).values():
                    raise MeetsIntent(intent)
            elif suffix in _WRITTEN and stored is not None:
                for holders in (self._writers, self._readers):
                    for intent in holders.of_key(keys.user_key(raw)):
                        raise MeetsIntent(intent)

    def _that_hold(self, holders: _Holders, concern: KeySet) -> Iterator[Intent]:
        for key in concern.keys:
            yield from holders.of_key(key)
        for span in concern.spans:
            yield from holders.of_span(*span)

    # --- calls that wait

    def park(self, call: Call, met: MeetsIntent) -> None:
        """Let a call wait for the intent that it has met."""
        intent = met.intent
        if self.by_transaction.get(intent.transaction_id) is not intent:
            self.resume([call])
            return
        met.since = self._monotonic()
        intent.waiting[call] = met
        self.met[intent] = None
        self.on_met()

    def withdraw(self, call: Call) -> bool:
        """Forget a call that waits; return whether it did."""
        return any(intent.waiting.pop(call, None) is not None for intent in self.under_way())

    def take_waiting(self) -> list[Call]:
        """Take out all calls that wait, and return them."""
        calls: list[Call] = []
        for intent in self.under_way():
            calls += intent.waiting
            intent.waiting = {}
        return calls

    def under_way(self) -> Iterable[Intent]:
        """Return the intents, with those whose end is not applied yet."""
        return chain(self.by_transaction.values(), self.going.values())


def _age_of_preparation(call: Call) -> Age:
    """Return the age of the transaction that a call prepares; ``NO_AGE``: it prepares none."""
    request = call.request
    return (request.began, request.transaction_id) if type(request) is Prepare else NO_AGE


_WRITERS: Final = frozenset((CommitTransaction, Prepare))
_WRITTEN: Final = (keys.HEAD, keys.ACCOUNTING)
