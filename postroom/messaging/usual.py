"""The usual proposal: the commits of most programs, evaluated in one pass.

A proposal passes through several stages, each of which is made for everything that a request may
be: long, refused, waiting, too large. Most proposals consist of commits that put, delete, send,
defer increments, reap, enqueue and acknowledge, and need none of that. This module evaluates such a
batch in one loop::

    waiting calls ─▶ UsualEvaluator.evaluate ─┬─▶ UsualBatch ─▶ settle ─┬─▶ proposed
                     (changes nothing)        │        a queue changes, └─▶ Batch: the general
                                              │        or upkeep waits          way goes on
                                              └─▶ None: the general way evaluates the calls

It knows no rule of its own. It repeats, for the requests it knows, what these modules do:
:mod:`postroom.ranges.transactions.one_range`, :mod:`postroom.ranges.evaluators`, :mod:`.outbox`,
:mod:`.moving`, :mod:`.inbox`, :mod:`.queues.enqueueing`, :mod:`.queues.settling`, and
:mod:`postroom.ranges.proposer`.

Contract: for any state and any batch, ``evaluate`` returns ``None``, or byte for byte the command,
the answers and the memory that the general way makes. If that way has to go on, it is the batch
that it makes of the calls of clients. Until ``settle`` is called, ``evaluate`` has changed nothing
but the cache of values, and the made-up ids that were met (:class:`.MadeUpIds`).
``tests/messaging/test_usual_way.py`` compares both ways with random batches, and the simulators
compare them in each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.errors import Error, TransactionConflict
from postroom.kv import keys, versions
from postroom.kv.clock import from_seconds
from postroom.kv.engine import BlockDamaged, EngineFailed, WriteSet
from postroom.limits import (
    COMMAND_BYTES_MAX,
    HEADERS_BYTES_PER_STEP,
    INTEGER_MAX,
    INTEGER_MIN,
    PROPOSAL_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_SECONDS_MAX,
)
from postroom.messaging.claims import Claims
from postroom.messaging.counters import Conservation
from postroom.messaging.inbox import Inboxes
from postroom.messaging.inbox_index import read_mail, stored_mail
from postroom.messaging.outbox import ENTRY_BYTES, Outboxes, Parcel
from postroom.messaging.queues import records
from postroom.messaging.queues.enqueueing import is_there
from postroom.messaging.queues.manager import Note, note_ready
from postroom.messaging.queues.places import held_together
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.queues.records import Entry, QueueLayout
from postroom.messaging.queues.requests import Acknowledge, EnqueueInQueue
from postroom.messaging.queues.settling import TOGETHER_AT_ONCE, finish_together
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    Counters,
    EnqueueMessage,
    EnqueueUpdate,
    InboxIndexEntry,
    ReapMessages,
)
from postroom.ranges.admission import REQUESTS_AT_ONCE
from postroom.ranges.batch import Batch
from postroom.ranges.calls import Call, LeasedWrites, Proposal, Result, encode
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import LONG_SHARE, WRITE_BYTES, Evaluation, yields_at
from postroom.ranges.evaluators import INTEGER, added
from postroom.ranges.requests import Committed, CommitTransaction, Delete, Increment, Put
from postroom.ranges.transactions.one_range import (
    CLIENTS_REMEMBERED,
    FEW,
    check_reads,
    from_record,
)
from postroom.ranges.usual import Share, UsualParts

_UNKNOWN: Final[Any] = object()
_WHOLE_TIME: Final = from_seconds(TRANSACTION_SECONDS_MAX)
_encode = msgspec.msgpack.Encoder().encode
_mail = msgspec.msgpack.Decoder(InboxIndexEntry).decode


class _Unusual(Exception):
    """The batch contains something that the general way must evaluate."""


class UsualEvaluator:
    """The evaluator of usual batches; see the module.

    Args:
        range_id: the id of the range.
        parts: the parts of the replica.
        conservation: the counters.
        outboxes: the outboxes.
        inboxes: the inboxes.
        queues: the queues, which may add to proposals.
    """

    def __init__(
        self,
        range_id: int,
        parts: UsualParts,
        conservation: Conservation,
        outboxes: Outboxes,
        inboxes: Inboxes,
        queues: RangeQueues,
    ) -> None:
        self._range_id = range_id
        self._sender = keys.u64(range_id)
        self._parts = parts
        self._conservation = conservation
        self._outbox = outboxes.deliverable
        self._outboxes = outboxes
        self._claims = inboxes.claims
        self._arrived = inboxes.arrived
        self._queues, self._steps = queues, queues.steps

    def propose(
        self, calls: Iterator[Call], taken: list[Call], last_commit: int, share: Share
    ) -> Proposal | Batch | None:
        """Return the proposal of the calls, or ``None``; see :class:`.UsualWay`."""
        usual = self.evaluate(calls, taken, last_commit, share)
        if usual is None:
            return None
        self.settle(usual)
        return usual.proposal

    def evaluate(
        self, calls: Iterator[Call], taken: list[Call], last_commit: int, share: Share
    ) -> UsualBatch | None:
        """Evaluate the calls without any effect; see ``propose``."""
        parts = self._parts
        if parts.committer.may_have_to_wait or parts.registry.refusal is not None:
            return None
        timestamp = parts.clock.coming(REQUESTS_AT_ONCE)
        if not timestamp:
            return None
        batch = UsualBatch(parts, self._claims, self._queues, last_commit, self._sender)
        if self._outbox.outgoing.may_go_out():
            batch.outboxes = self._outboxes
        try:
            batch.commit_all(calls, taken, timestamp, share)
            if batch.notes or self._steps.is_wanted or not share.is_all:
                return batch.begun(self._range_id, timestamp)
            return self._complete(batch)
        except (_Unusual, EngineFailed, BlockDamaged, msgspec.DecodeError):
            return None  # the general way tells the callers

    def _complete(self, batch: UsualBatch) -> UsualBatch:
        """Make the proposal of a batch to which nothing is added."""
        feed, conservation = self._parts.feed, self._conservation
        applied, sent, deferred = conservation.applied, batch.sent, batch.deferred
        if sent or deferred:
            batch.go_along()
        if sent:
            if applied.pending_messages and self._outbox.has_due_stored(
                self._parts.cache, batch.last_commit
            ):
                raise _Unusual
            batch.deliver()
            batch.after.append(partial(self._arrived, batch.first))
        if deferred:
            if applied.pending_updates:
                raise _Unusual
            batch.execute()
        if feed.floor is not None:
            batch.after.append(feed.followed(batch.staged, batch.last_commit))
        if not (sent or deferred or batch.reaped):
            return batch.propose(None)
        after = batch.counted(applied)
        batch.after.append(partial(setattr, conservation, "applied", after))
        return batch.propose(_encode(after))

    def settle(self, usual: UsualBatch) -> None:
        """Let the memory follow a proposal that is made now."""
        parts = self._parts
        parts.clock.take(usual._timestamp)
        parts.committer.latest.update(usual.latest)
        if usual.reaped:
            for key, ids in usual.reaped.items():
                self._claims.gone(key, ids)
        if usual.first:
            self._claims.arriving(usual.first)
        if usual.notes:
            for manager in {note[0]: None for note in usual.notes}:
                manager.was_asked_for = True


class UsualBatch:
    """A batch under evaluation, which has changed nothing yet.

    Attributes:
        proposal: the proposal, or a batch of the calls of clients with which the general way goes
            on.
        staged, garbage, bytes, moved, steps, last_commit, notes, scratch: as in
            :class:`.Evaluation`.
        sent, deferred: the parcels in the outboxes of the commits.
        latest: the numbers of the newest transactions, by client.
        first: the least id of the messages that arrive, by inbox.
        reaped: the ids of the messages that are reaped, by inbox.
        outboxes: the outboxes, if something may have to leave the range.
    """

    proposal: Proposal | Batch

    __slots__ = (
        "_cache", "_claims", "_parts", "_queues", "_results", "_sender", "_stamp",
        "_timestamp", "_yields_first", "after", "bytes", "deferred", "first", "garbage",
        "last_commit", "latest", "messages_reaped", "moved", "notes", "outboxes", "proposal",
        "reaped", "scratch", "sent", "staged", "steps",
    )  # fmt: skip

    def __init__(
        self,
        parts: UsualParts,
        claims: Claims,
        queues: RangeQueues,
        last_commit: int,
        sender: bytes,
    ) -> None:
        self._parts, self._sender = parts, sender
        self._queues = queues
        self._cache = parts.cache.look_up
        self._claims = claims
        self._results: list[Result] = []
        self.last_commit = last_commit
        self.staged: WriteSet = {}
        self.garbage: list[bytes] = []
        self.after: list[Callable[[], None]] = []
        self.sent: list[Parcel] = []
        self.deferred: list[Parcel] = []
        self.notes: list[Note] = []
        self.scratch: dict[object, Any] = {}
        self.latest: dict[bytes, bytes] = {}
        self.first: dict[bytes, bytes] = {}
        self.reaped: dict[bytes, list[bytes]] = {}
        self.bytes = self.moved = self.steps = self.messages_reaped = 0
        self.outboxes: Outboxes | None = None

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of an engine key, as the calls before have left it."""
        value = self.staged.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            return self._cache(key)
        return value  # type: ignore[no-any-return]  # a sentinel stands for "not known"

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span, as the calls before have left them; seldom used."""
        ctx = Evaluation(self._parts.cache, 0, self.last_commit)
        ctx.take_up(self.staged, self._timestamp, self._timestamp)
        return ctx.iterate(lower, upper, reverse=reverse)

    @property
    def timestamp(self) -> int:
        """Return the timestamp of the commit under evaluation; at the end, the last one used."""
        return self._timestamp

    @property
    def writes(self) -> WriteSet:
        """Return the raw writes of all commits."""
        return self.staged

    def is_deleted(self, key: bytes) -> bool:
        """Return whether the commits have deleted an engine key."""
        return self.staged.get(key, _UNKNOWN) is None

    def is_written(self, key: bytes) -> bool:
        """Return whether the commits have written an engine key, and not deleted it since."""
        return self.staged.get(key) is not None

    # --- commits

    def commit_all(
        self, calls: Iterator[Call], taken: list[Call], timestamp: int, share: Share
    ) -> None:
        """Evaluate the calls that the share has room for, the first one at ``timestamp``."""
        room, steps_max, bytes_max = REQUESTS_AT_ONCE, share.steps, share.bytes
        self._yields_first = limits.TURN_STEPS_MAX // LONG_SHARE  # no request yields before that
        if self.steps >= steps_max or self.bytes >= bytes_max:
            return
        for call in calls:
            taken.append(call)
            request = call.request
            if type(request) is not CommitTransaction or call.cancelled:
                raise _Unusual
            room -= 1
            self._timestamp, self._stamp = timestamp, timestamp.to_bytes(8, "big")
            timestamp += 1
            self.steps += 1
            self._commit(call, request)
            if not room or self.steps >= steps_max or self.bytes + self.moved >= bytes_max:
                return

    def _commit(self, call: Call, request: CommitTransaction[Any]) -> None:
        """Evaluate one commit, as :class:`.Committer` does."""
        writes, committer = request.writes, self._parts.committer
        if request.spans or len(request.reads) + len(writes) > FEW:
            raise _Unusual
        bounds = committer.bounds
        is_within = bounds.is_whole or call.within is bounds.descriptor
        wrong = None if is_within else bounds.refusal_of(call)
        if wrong is not None:
            self._results.append((call, None, wrong))
            return
        record = keys.transaction_key(request.anchor, request.transaction_id)
        known = self._known(request, record)
        if known is not None:
            self._results.append((call, from_record(known), None))
            return
        since, age = request.read_timestamp, self._timestamp - request.began
        age_max = (
            _WHOLE_TIME if request.seconds_max >= TRANSACTION_SECONDS_MAX
            else from_seconds(request.seconds_max)
        )  # fmt: skip
        registry = self._parts.registry
        if age > age_max or 0 < since < registry.replaced_at or request.began <= registry.image_at:
            raise _Unusual
        if 0 < since < self.last_commit:
            try:
                check_reads(self, request)
            except TransactionConflict as error:
                self._conflicts(call, request, error)
                return
        answers: list[int | None] = []
        if writes:
            before = self.steps
            ended = self._write(request, writes)
            answers = _answers(writes, ended) if ended else []
            if (
                self.steps >= self._yields_first and self.steps >= yields_at(before)
                and committer.is_long(request)
            ):  # fmt: skip
                raise _Unusual  # the general way evaluates the rest in the next turn
            self.staged[record] = self._stamp
            if answers:
                self.staged[record] = self._stamp + _encode(answers)
            self.garbage.append(record)
            self.last_commit = self._timestamp
        self._results.append((call, Committed(self._timestamp, answers), None))

    def _conflicts(
        self, call: Call, request: CommitTransaction[Any], error: TransactionConflict
    ) -> None:
        """Answer a commit that conflicts. The check of a long one may take a turn of its own."""
        if self._parts.committer.is_long(request):
            raise _Unusual from error
        self._results.append((call, None, error.with_traceback(None)))

    def _known(self, request: CommitTransaction[Any], record: bytes) -> bytes | None:
        """Return the COMMIT record, if there is one; note the transaction as its client's."""
        client, number = request.transaction_id[:8], request.transaction_id[8:]
        committer = self._parts.committer
        latest = self.latest.get(client) or committer.latest.get(client)
        if latest is None and len(committer.latest) + len(self.latest) >= CLIENTS_REMEMBERED:
            raise _Unusual
        if latest is not None and number <= latest:
            return self.get(record)
        self.latest[client] = number
        return self.get(record) if request.began < committer.remembers_from else None

    def _write(self, request: CommitTransaction[Any], writes: list[Any]) -> list[int]:
        """Evaluate the writes of a commit; return the answers of those that tell something."""
        bytes_max, moved_max = self.bytes + TRANSACTION_BYTES_MAX, self.moved + COMMAND_BYTES_MAX
        ordinal, staged, head_key = 0, self.staged, keys.head_key
        ended: list[int] = []
        for write in writes:
            kind = type(write)
            if kind is Put:
                if write.integer and len(write.value) != INTEGER.size:
                    raise _Unusual
                head = head_key(write.key)
                old = staged[head] if head in staged else self._cache(head)
                kind_of_value = versions.INTEGER_KIND if write.integer else versions.VALUE_KIND
                self._put_version(head, old, kind_of_value, write.value)
            elif kind is EnqueueMessage:
                ordinal += 1
                self._enqueue_message(request, write, ordinal)
            elif kind is EnqueueUpdate:
                ordinal += 1
                self._enqueue_update(request, write, ordinal)
            elif kind is EnqueueInQueue:
                ordinal += 1
                self._enqueue_in_queue(write, ordinal)
            elif kind is Acknowledge:
                ended.append(self._acknowledge(write))
            elif kind is Delete:
                self._delete(write.key)
            else:
                self._reap(request.transaction_id, write)
            if self.bytes > bytes_max or self.moved > moved_max:
                raise _Unusual
        return ended

    def _put_version(self, head: bytes, old: bytes | None, kind: bytes, value: bytes = b"") -> None:
        """Make ``value`` the newest version of a user key, as ``Evaluation.put_version`` does."""
        stamp = self._stamp
        if old is not None and (before := old[1:9]) != stamp:
            history = keys.history_key(head, before)
            self.staged[history] = old
            self.moved += len(old)
            self.garbage.append(history)
        self.staged[head] = kind + stamp + value
        self.steps += 1
        self.bytes += len(value) + 2 * len(head) + WRITE_BYTES

    def _delete(self, key: bytes) -> None:
        head = keys.head_key(key)
        old = self.get(head)
        if versions.payload(old) is None:
            return
        self._put_version(head, old, versions.TOMBSTONE_KIND)
        self.garbage.append(head)
        self.bytes += 2 * len(head)

    def _enqueue_message(
        self, request: CommitTransaction[Any], write: EnqueueMessage, ordinal: int
    ) -> None:
        outboxes = self.outboxes
        if write.due or (
            outboxes is not None and outboxes.deliverable.outgoing.goes_out(write.key)
        ):
            raise _Unusual
        if write.headers is not None:
            self.bytes += self._checked_headers(write)
        id_ = self._stamp + self._sender + ordinal.to_bytes(4, "big")
        self.sent.append((0, id_, write, request.transaction_id, request.anchor))
        self.steps += 1
        self.bytes += len(write.value) + len(write.key) + ENTRY_BYTES

    def _checked_headers(self, write: EnqueueMessage | EnqueueInQueue) -> int:
        """Return how many bytes the headers of a message take."""
        if write.is_long():
            raise _Unusual
        try:
            size = check_headers(write.headers, write.key)
        except Error as error:
            raise _Unusual from error
        self.steps += size // HEADERS_BYTES_PER_STEP
        return size

    def _enqueue_update(
        self, request: CommitTransaction[Any], write: EnqueueUpdate, ordinal: int
    ) -> None:
        outboxes, update = self.outboxes, write.request
        if write.due or type(update) is not Increment:
            raise _Unusual
        if outboxes is not None and outboxes.executable.outgoing.update_goes_out(
            self.scratch, update
        ):
            raise _Unusual
        id_ = self._stamp + self._sender + ordinal.to_bytes(4, "big")
        self.deferred.append((0, id_, update, request.transaction_id, request.anchor))
        self.steps += 1
        self.bytes += ENTRY_BYTES

    def _enqueue_in_queue(self, write: EnqueueInQueue, ordinal: int) -> None:
        """Enqueue a message that is ready at once and in no group, and was not there before."""
        manager = self._queues.in_use(write.queue)
        if manager is None or write.due or write.group:
            raise _Unusual
        kept = write.payload if len(write.payload) <= records.PAYLOAD_KEPT_BYTES else None
        if write.headers is not None and self._checked_headers(write):
            kept = None
        layout, staged, now = manager.layout, self.staged, self._timestamp
        seq = layout.seq(self._stamp, ordinal)
        key, kind, id_, priority = write.key, write.kind, write.id, write.priority
        if self.outboxes is not None and self._is_elsewhere(key, id_):
            raise _Unusual
        body_key = layout.body_key(key, kind, id_)
        if self._is_there(layout, write):
            raise _Unusual
        body = _encode((seq, write.payload, write.headers, now, priority, "", None))  # a ``Body``
        staged[body_key] = body
        if not write.is_unique:
            self._queues.made_up.placed(id_)
        if key != id_:
            staged[layout.pointer_key(kind, id_)] = key
            self.bytes += 2 * len(key) + len(id_)
        entry = Entry(key, kind, id_, seq, now, now, priority, 0, "", 0, False, kept)
        placed = layout.ready_key(entry, ordered=manager.ordered)
        staged[placed] = _encode(entry)
        note_ready(self.notes, manager, self._stamp, placed, entry)
        self.steps += 1
        self.bytes += 2 * len(body) + 3 * len(body_key) + 3 * WRITE_BYTES

    def _is_elsewhere(self, key: bytes, id_: bytes) -> bool:
        """Return whether a message, or its id, lies in another range."""
        is_elsewhere = self._queues.departures.is_elsewhere
        return is_elsewhere(key) or (key != id_ and is_elsewhere(id_))

    def _is_there(self, layout: QueueLayout, write: EnqueueInQueue) -> bool:
        """Return whether there is a message of that kind and id, or was one."""
        if write.is_unique and self._queues.made_up.is_new(write.id, self):
            return False
        get = self._get_once if write.is_unique else self.get
        return is_there(get, layout, write.kind, write.id)

    def _get_once(self, key: bytes) -> bytes | None:
        """Return the value of an engine key that will hardly be asked for again."""
        value = self.staged.get(key, _UNKNOWN)
        return self._parts.cache.get_once(key) if value is _UNKNOWN else value

    def _acknowledge(self, write: Acknowledge) -> int:
        """Acknowledge messages by the attempts that hold them, as :class:`.Settling` does."""
        manager, attempts = self._queues.in_use(write.queue), write.attempts
        if manager is None or not 0 < len(attempts) <= TOGETHER_AT_ONCE:
            raise _Unusual
        try:
            leases = held_together(self, manager, attempts)
        except Error as error:
            raise _Unusual from error
        if leases is None or finish_together(self, manager, manager.definition.settings, leases):
            raise _Unusual
        return len(leases)

    def _reap(self, transaction_id: bytes, write: Any) -> None:
        """Reap messages that were found for this transaction, as :class:`.Inboxes` does."""
        if type(write) is not ReapMessages:
            raise _Unusual
        key = write.key
        mail = None if key in self.reaped else read_mail(self, key)
        found = self._claims.found(key, transaction_id, write.ids) if mail is not None else None
        if mail is None or found is None:
            raise _Unusual
        prefix, messages, oldest = keys.inbox_prefix(key), found.messages, mail.oldest
        left = mail.messages - len(messages)
        if left and oldest == messages[0][0]:
            if not (found.is_gapless and found.following):
                raise _Unusual
            oldest = found.following
        self.bytes += found.size_bytes + len(messages) * (len(prefix) + 2 * MESSAGE_ID_BYTES)
        self.steps += len(messages)
        ids = write.ids
        self.staged.update(dict.fromkeys([prefix + id_ for id_ in ids]))
        self.staged[keys.mail_key(key)] = stored_mail(InboxIndexEntry(left, oldest, mail.held))
        history = keys.reaped_key(key, self._stamp)
        self.staged[history] = _encode(messages)
        self.garbage.append(history)
        self.reaped[key] = ids
        self.messages_reaped += len(messages)
        self.after.append(partial(self._claims.taken, key, ids))

    # --- delivery and execution

    def deliver(self) -> None:
        """Put the messages into their inboxes, as :class:`.Delivery` and :class:`.Inboxes` do."""
        sent, staged, now = self.sent, self.staged, self._timestamp
        if len(sent) > max(limits.TURN_STEPS_MAX // 2, 1) or (
            len(sent) > limits.DELIVERED_AT_ONCE_MAX
        ):
            raise _Unusual
        arrivals: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for _, id_, write, _, _ in sent:
            stored = _encode((now, write.value, write.headers))
            arrived, key = (id_, stored), write.key
            if key in arrivals:
                arrivals[key].append(arrived)
            else:
                arrivals[key] = [arrived]
        for key, messages in arrivals.items():
            prefix, index = keys.inbox_prefix(key), keys.mail_key(key)
            for message_id, stored in messages:
                staged[prefix + message_id] = stored
            number, oldest = len(messages), messages[0][0]
            self.first[key] = oldest
            before = staged[index] if index in staged else self._cache(index)
            if before is not None:
                mail = _mail(before)
                if mail.held:
                    raise _Unusual
                number += mail.messages
                oldest = min(oldest, mail.oldest)
            staged[index] = _encode((number, oldest))

    def execute(self) -> None:
        """Carry out the increments, those of a key as one, as :class:`.Execution` does."""
        deferred, staged = self.deferred, self.staged
        if len(deferred) > limits.TURN_STEPS_MAX or len(deferred) > limits.EXECUTED_AT_ONCE_MAX:
            raise _Unusual
        sums: dict[bytes, tuple[int, bool]] = {}
        full_at = self.bytes + self.moved + PROPOSAL_BYTES_MAX
        for _, _, request, _, _ in deferred:
            by, packed = sums.get(request.key, (0, False))
            sums[request.key] = by + request.by, packed or request.packed
        if len(sums) >= limits.TURN_STEPS_MAX // 4:
            raise _Unusual  # the general way may need another turn
        for key, (by, packed) in sums.items():
            head = keys.head_key(key)
            old = staged[head] if head in staged else self._cache(head)
            number = by
            if old is not None and old[0] == versions.INTEGER:
                number += INTEGER.unpack_from(old, versions.PAYLOAD)[0]
            elif old is not None:
                number = _added(old, by, key, packed=packed)
            if not INTEGER_MIN <= number <= INTEGER_MAX:
                raise _Unusual
            self._put_version(head, old, versions.INTEGER_KIND, INTEGER.pack(number))
        if self.bytes + self.moved > full_at:
            raise _Unusual

    def go_along(self) -> None:
        """Begin what goes along with the commits, at the next timestamp."""
        self._timestamp += 1
        self._stamp = self._timestamp.to_bytes(8, "big")
        self.last_commit = self._timestamp

    def counted(self, applied: Counters) -> Counters:
        """Return the counters after this proposal."""
        sent, executed = len(self.sent), len(self.deferred)
        after = Counters(
            applied.enqueued + sent + executed, applied.delivered + sent,
            applied.executed + executed, applied.pending_messages, applied.pending_updates,
            applied.dead, applied.discarded,
            applied.reaped + self.messages_reaped, applied.cancelled, applied.received,
            applied.handed, applied.outgoing_messages, applied.outgoing_updates,
            applied.outgoing_bytes,
        )  # fmt: skip
        if not after.conserved():
            raise _Unusual
        return after

    def propose(self, sums: bytes | None) -> UsualBatch:
        """Make the proposal."""
        staged, garbage, last_commit = self.staged, self.garbage, self.last_commit
        if garbage:
            if len(garbage) > limits.GARBAGE_LIST_KEYS_MAX // 2:
                raise _Unusual
            self._parts.garbage.stage(staged, garbage, last_commit.to_bytes(8, "big"))
        if len(staged) > limits.COMPLETED_AT_ONCE_MAX or not staged:
            raise _Unusual
        holder = self._parts.lease
        command = LeasedWrites(holder.lease.sequence, staged, last_commit, sums)
        packed = encode(command)
        if len(packed) >= COMMAND_BYTES_MAX or holder.wants_extension(self._timestamp):
            raise _Unusual
        self.proposal = Proposal(command, self._results, self.after, last_commit, packed=packed)
        return self

    # --- the batch for the general way

    def begun(self, range_id: int, began: int) -> UsualBatch:
        """Return the batch of these commits; the first one has the timestamp ``began``."""
        results = self._results
        if not results:
            raise _Unusual
        batch = Batch(Evaluation(self._parts.cache, range_id, self.last_commit))
        batch.results, ctx = results, batch.ctx
        ctx.take_up(self.staged, began, self._timestamp)
        ctx.bytes, ctx.moved, ctx.steps = self.bytes, self.moved, self.steps
        ctx.garbage, ctx.notes, ctx.after = self.garbage, self.notes, self.after
        ctx.sent, ctx.deferred = self.sent, self.deferred
        ctx.scratch = self.scratch
        if self.messages_reaped:
            ctx.tally = {"reaped": self.messages_reaped}
        self.proposal = batch
        return self


def _answers(writes: list[Any], ended: list[int]) -> list[int | None]:
    """Return the answers of the writes of a commit, from those of its acknowledgements."""
    left = iter(ended)
    return [next(left) if type(each) is Acknowledge else None for each in writes]


def _added(old: bytes, by: int, key: bytes, *, packed: bool) -> int:
    """Return the sum of an increment and what was put, which may be no integer."""
    try:
        return added(versions.payload(old), by, key, integer=False, packed=packed)
    except Error as error:
        raise _Unusual from error
