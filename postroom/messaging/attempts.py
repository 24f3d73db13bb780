"""The attempts at messages in vain: their evaluation, their notes, and the service that sends them.

::

    inbox ── reaped ─┬─ commit ───────────────────▶ gone
      ▲              ├─ commit, postponed ─┬──────▶ outbox, due later ──▶ at its place in the inbox
      │              │                     └─ last ▶ dead letter
      │              ├─ commit, buried ───────────▶ dead letter
      │              ├─ rolled back, in conflict ─▶ as before: that is no attempt
      └── counted ◀──┴─ its consumer has vanished ─ last ▶ dead letter

A postponed message is not in the inbox. It waits in the outbox like a scheduled one, under its id.
Like that it is listed, cancelled, and brought back by the dispatcher, to the place that it had. It
counts as pending meanwhile, a dead one as dead; neither counts as delivered.

The reaper says how many attempts a message has (``attempts_max``). An attempt counts when it is
postponed, or when the reaper vanishes with the message: its client has fallen silent, or the time
of its transaction has passed. A rollback or a conflict is no attempt. Claims are in memory, so an
attempt that ends well costs no write. A lost attempt is a write of the leaseholder's:
the message leaves the inbox and comes back in one step.

Invariant: one write set takes a message that was tried out of the inbox and puts it where it is
from then on. It also writes a record for readers of the past.

::

    a reaper vanishes with messages ─▶ "lost"   the attempt counts; an heir holds them until then
    reap, in a new process ──────────▶ "begun"  before the messages are given to the reaper
    ... and released again ──────────▶ "ended"  that attempt ended with a word: it does not count

Claims are in the leaseholder's memory. The leaseholder knows how the claims of a client elsewhere
end. But an embedded store ends with its process, and so do the claims: a message that kills the
process would be tried for ever.

Therefore a new process of an embedded store writes an attempt down as begun before it gives a
reaper messages *that were sent before the process began*. It does this for reapers with a limit of
attempts. If the process ends before the attempt is over, the next process finds and counts it.
Messages that are sent later cost nothing. Thus a message that kills its process is tried at most
once more than the limit.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import msgspec

from postroom.errors import (
    CommitUnknown,
    Retryable,
    StoreCorrupted,
    TransactionTooLarge,
    Unavailable,
    shorten,
)
from postroom.kv import keys
from postroom.limits import INBOX_BACKOFF_SECONDS_MAX
from postroom.messaging.claims import Claims
from postroom.messaging.due import due_after, jittered_backoff
from postroom.messaging.inbox import Inboxes, tried_by_another
from postroom.messaging.inbox_reads import Stored, trial_of
from postroom.messaging.outbox import Outbox
from postroom.messaging.requests import (
    BuryMessages,
    Deliverable,
    Delivered,
    NoteAttempts,
    PostponeMessages,
    ReapedMessages,
    ReapQueue,
    Trial,
)
from postroom.messaging.undelivered import DeadLetters, DeathLog, reviving_letter
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation, MustWait
from postroom.ranges.ports import Registry, ServiceWakeUp

BACKOFF_SECONDS: Final = 1.0
"""The back-off after the first failure, in seconds; each further failure doubles it."""
UNTRIED: Final = Trial(0)

_encode = msgspec.msgpack.encode
_delivered = msgspec.msgpack.Decoder(Delivered)


@dataclass(eq=False)
class Attempts:
    """The evaluator of messages that were tried in vain.

    Attributes:
        inboxes, outbox, dead_letters: those of the range.
        chance: a random number from 0 up to 1.
        since: the timestamp at which this leaseholder began to serve.
        bounds: the bounds of the range.
        deaths: the log of messages that died.
    """

    inboxes: Inboxes
    outbox: Outbox
    dead_letters: DeadLetters
    chance: Callable[[], float]
    since: Callable[[], int]
    bounds: Bounds
    deaths: DeathLog = field(default_factory=DeathLog, init=False)

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes[PostponeMessages] = self.postpone
        registry.writes[BuryMessages] = self.bury
        registry.commands[NoteAttempts] = self.note

    # --- requests of transactions

    def postpone(self, ctx: Evaluation, request: PostponeMessages) -> Generator[None, None, None]:
        """Evaluate ``PostponeMessages``.

        Raises:
            TransactionConflict: a message is not there, or was tried by somebody else meanwhile.
        """
        key = request.key
        back: Stored = []
        waiting: Stored = []
        for id_, message in (yield from self._take(ctx, key, request.tries)):
            failed = _trial(message).attempts + 1
            trial = Trial(failed, request.reason)
            due = self._due(ctx, request.seconds, failed)
            if 0 < request.attempts_max <= failed:
                self._bury(ctx, key, id_, message, trial)
            elif due <= ctx.timestamp:
                back.append((id_, _encode(_back(ctx, message, trial))))
            else:
                entry = _entry(key, message, trial)
                waiting.append((id_, self.outbox.store(ctx, due, id_, entry)))
            ctx.steps += 1
            if ctx.is_used_up():
                yield
        self._put_back(ctx, key, back)
        if waiting and request.hold:
            self.inboxes.hold_up(ctx, key, waiting)

    def _due(self, ctx: Evaluation, seconds: float | None, failed: int) -> int:
        if seconds is None:
            seconds = jittered_backoff(
                BACKOFF_SECONDS, failed - 1, 0.0, INBOX_BACKOFF_SECONDS_MAX, self.chance()
            )
        return due_after(ctx.timestamp, seconds)

    def bury(self, ctx: Evaluation, request: BuryMessages) -> Generator[None, None, None]:
        """Evaluate ``BuryMessages``.

        Raises:
            TransactionConflict: as for :meth:`postpone`.
        """
        for id_, message in (yield from self._take(ctx, request.key, request.tries)):
            trial = Trial(_trial(message).attempts + 1, request.reason)
            self._bury(ctx, request.key, id_, message, trial)
            ctx.steps += 1
            if ctx.is_used_up():
                yield

    def _take(
        self, ctx: Evaluation, key: bytes, tries: list[tuple[bytes, int]]
    ) -> Generator[None, None, list[tuple[bytes, Delivered]]]:
        """Take messages out of the inbox and return them."""
        if not tries:
            return []
        expected = dict(tries)
        found = yield from self.inboxes.take_out(ctx, key, expected)
        taken = []
        for id_, stored in found:
            message = _delivered.decode(stored)
            taken.append((id_, message))
            ctx.steps += 1
            if ctx.is_used_up():
                yield
            if expected[id_] not in {-1, _trial(message).attempts}:
                raise tried_by_another(key)
        return taken

    # --- notes of the leaseholder

    def note(self, ctx: Evaluation, request: NoteAttempts) -> Generator[None, None, Stored]:
        """Evaluate ``NoteAttempts``; return the messages in the inbox, as they are stored now."""
        key = request.key
        back: Stored = []
        if not self.bounds.contains(key):
            return back  # the range was split: claims on messages of the other half are void
        prefix = keys.inbox_prefix(key)
        left = [id_ for id_ in request.ids if ctx.get(prefix + id_) is not None]
        if request.what != "lost":
            # The holder (or none) must be the noted one: otherwise another attempt is under way.
            holder, of = request.holder or None, self.inboxes.claims.holder
            left = [id_ for id_ in left if of(key, id_) == holder]
        if not left:
            return back
        for id_, stored in (yield from self.inboxes.take_out(ctx, key, left)):
            message = _delivered.decode(stored)
            trial, is_over = self._noted(request, message)
            if is_over and 0 < request.attempts_max <= trial.attempts:
                self._bury(ctx, key, id_, message, trial)
                revive = f"to revive it: {reviving_letter(id_.hex())}"
                what = f"message {id_.hex()} of {shorten(key)}"
                self.deaths.died(ctx, what, trial.attempts, trial.error, revive)
            else:
                back.append((id_, _encode(_back(ctx, message, trial))))
        self._put_back(ctx, key, back)
        return back

    def _noted(self, request: NoteAttempts, message: Delivered) -> tuple[Trial, bool]:
        """Return the trial of a message now, and whether one of its attempts has failed."""
        before = _trial(message)
        if request.what == "ended":
            return Trial(before.attempts, before.error), False
        if request.what == "lost":
            return Trial(before.attempts + 1, request.reason), True
        if before.begun and message.delivered_at < self.since():
            return Trial(before.attempts + 1, request.reason, begun=True), True
        return Trial(before.attempts, before.error, begun=True), False

    # --- their new places

    def _put_back(self, ctx: Evaluation, key: bytes, messages: Stored) -> None:
        if messages:
            ctx.grow(sum(len(stored) for _, stored in messages))
            ctx.count("delivered", self.inboxes.deliver(ctx, {key: messages}))

    def _bury(
        self, ctx: Evaluation, key: bytes, id_: bytes, message: Delivered, trial: Trial
    ) -> None:
        trial = Trial(trial.attempts, trial.error)
        self.dead_letters.bury_message(ctx, id_, _entry(key, message, trial))


def _trial(message: Delivered) -> Trial:
    return UNTRIED if message.trial is None else message.trial


def _back(ctx: Evaluation, message: Delivered, trial: Trial) -> Delivered:
    """Return a message as it is in the inbox again."""
    known = None if trial == UNTRIED else trial
    return Delivered(ctx.timestamp, message.value, message.headers, known)


def _entry(key: bytes, message: Delivered, trial: Trial) -> Deliverable:
    """Return a message as it is outside of the inbox; its sender is not known any more."""
    return Deliverable(key, message.value, message.headers, b"", b"", trial)


PROCESS_HAS_ENDED: Final = "the process that had it has ended"
_NO_CLIENT: Final = bytes(8)
_NOTED_TOGETHER: Final = 1000
"""The number of messages in one note; a client may reap as many as it asks for."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Beginning:
    """A reap whose attempts are being written down, and the token that it waits for.

    Attributes:
        request: the reap.
        reaped: its answer.
        is_written: whether it may be answered now.
    """

    request: ReapQueue
    reaped: ReapedMessages
    is_written: bool = False


@dataclass(eq=False)
class AttemptNotes:
    """The notes about attempts of one range, and the service that writes them.

    Attributes:
        claims: the claims of the inboxes.
        reading: about now, as a timestamp.
        wake_up: the flag that wakes the service.
        rouse: a function that lets a store that rests begin to work.
        wake: a function that answers the requests that wait for tokens.
        is_embedded: whether clients end with this process.
        since: when this leaseholder began to serve.
    """

    claims: Claims
    _: KW_ONLY
    reading: Callable[[], int]
    wake_up: ServiceWakeUp
    rouse: Callable[[], None]
    wake: Callable[[list[object]], None]
    is_embedded: bool
    since: int = 0
    _to_write: deque[tuple[NoteAttempts, _Beginning | None]] = field(default_factory=deque)
    _beginnings: dict[int, _Beginning] = field(default_factory=dict)
    _begun: dict[bytes, list[tuple[bytes, list[bytes]]]] = field(default_factory=dict)
    _forgotten: list[object] = field(default_factory=list)
    _heirs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def register(self, registry: Registry) -> None:
        """Register the number of notes that are kept."""
        registry.sizes["attempts to note"] = lambda: len(self._to_write) + len(self._begun)

    def restart(self) -> None:
        """Begin with a new lease."""
        self.end()
        self.since = self.reading() + 1

    def end(self) -> None:
        """Forget all notes, at the end of the lease."""
        self._forgotten += self._beginnings.values()
        self._to_write.clear()
        self._beginnings.clear()
        self._begun.clear()

    def _write(self, note: NoteAttempts, beginning: _Beginning | None = None) -> None:
        self._to_write.append((note, beginning))
        self.rouse()
        self.wake_up.set()

    # --- attempts that are lost

    def vanished(self, transaction_id: bytes, why: str) -> None:
        """Write down the lost attempts of a transaction that has ended without a word."""
        self._begun.pop(transaction_id, None)
        for heir, taken in self.claims.pass_on(transaction_id, self._heir):
            ids = taken.ids
            for first in range(0, len(ids), _NOTED_TOGETHER):
                some = ids[first : first + _NOTED_TOGETHER]
                # The heir is released with the last note.
                holder = heir if first + len(some) == len(ids) else b""
                self._write(NoteAttempts(taken.key, some, "lost", why, taken.attempts_max, holder))

    def _heir(self) -> bytes:
        return _NO_CLIENT + keys.u64(next(self._heirs))

    # --- attempts that are written down before they begin

    def before(self, request: ReapQueue, reaped: ReapedMessages) -> None:
        """Write down the attempts of a reap that is about to be answered, if they must be.

        Raises:
            MustWait: they are being written down.
        """
        began = keys.u64(self.since)
        if not self.is_embedded or reaped.messages[0][0] >= began:
            return
        older = [
            pair for pair in reaped.messages
            if pair[0] < began and (request.attempts_max or trial_of(pair[1]) is not None)
        ]  # fmt: skip
        if not older:
            return
        messages = [(id_, _delivered.decode(stored)) for id_, stored in older]
        if not any(self._must_begin(request, each) for _, each in messages):
            begun = [id_ for id_, each in messages if each.trial is not None and each.trial.begun]
            self._handed_out(request, begun)
            return
        beginning = _Beginning(request, reaped)
        self._beginnings[id(request)] = beginning
        note = NoteAttempts(
            request.key, [id_ for id_, _ in reaped.messages], "begun", PROCESS_HAS_ENDED,
            request.attempts_max, request.transaction_id,
        )  # fmt: skip
        self._write(note, beginning)
        # No reap may wait for it by then: the end of the transaction reverts it.
        self._handed_out(request, note.ids)
        raise MustWait(beginning)

    def _must_begin(self, request: ReapQueue, message: Delivered) -> bool:
        if message.trial is not None and message.trial.begun:
            # It was begun by a process that has ended without a word about it.
            return message.delivered_at < self.since
        return request.attempts_max > 0

    def given(self, request: ReapQueue) -> ReapedMessages | None:
        """Return the answer of a reap whose attempts are written down, or `None` if there is none.

        Raises:
            MustWait: they are being written down.
        """
        beginning = self._beginnings.get(id(request)) if self._beginnings else None
        if beginning is None:
            return None
        if not beginning.is_written:
            raise MustWait(beginning)
        del self._beginnings[id(request)]
        return beginning.reaped if beginning.reaped.messages else None

    def _handed_out(self, request: ReapQueue, ids: list[bytes]) -> None:
        if ids:
            self._begun.setdefault(request.transaction_id, []).append((request.key, ids))

    def given_up(self, request: object) -> None:
        """Forget the attempts of a reap that is waited for no more."""
        self._beginnings.pop(id(request), None)

    def released(self, transaction_id: bytes) -> None:
        """Write down that the begun attempts of a transaction have ended with a word."""
        for key, ids in self._begun.pop(transaction_id, ()):
            self._write(NoteAttempts(key, ids, "ended", "", 0, b""))

    # --- the service

    async def run(self, send: Callable[[Any], Awaitable[Any]]) -> None:
        """Write down all notes, for ever.

        Args:
            send: a function that sends a request to the range, as upkeep.
        """
        forgotten, self._forgotten = self._forgotten, []
        self.wake(forgotten)
        while True:
            pause = math.inf
            if self._to_write:
                note, beginning = self._to_write[0]
                try:
                    written = await self._send(send, note)
                except Retryable as error:
                    pause = error.retry_after if isinstance(error, Unavailable) else 0.0
                except (CommitUnknown, StoreCorrupted, OSError, MemoryError):
                    raise  # the note is not to blame for these
                except Exception:
                    _log.exception("the end of an attempt cannot be stored")
                    self._written(note, beginning, None)
                    continue
                else:
                    self._written(note, beginning, written)
                    continue
            await self.wake_up.wait(pause)

    async def _send(self, send: Callable[[Any], Awaitable[Any]], note: NoteAttempts) -> Stored:
        """Send a note, in parts if it is too large as a whole."""
        try:
            written: Stored = await send(note)
        except TransactionTooLarge:
            half = len(note.ids) // 2
            if not half:
                raise
            first = msgspec.structs.replace(note, ids=note.ids[:half])
            second = msgspec.structs.replace(note, ids=note.ids[half:])
            return await self._send(send, first) + await self._send(send, second)
        return written

    def _written(
        self, note: NoteAttempts, beginning: _Beginning | None, written: Stored | None
    ) -> None:
        """Note that a note is written; `None`: it never will be."""
        if self._to_write and self._to_write[0][0] is note:
            self._to_write.popleft()
        if beginning is not None:
            if written is not None:
                beginning.reaped = ReapedMessages(written, beginning.reaped.more)
            beginning.is_written = True
            self.wake([beginning])
        elif note.what == "lost":
            self.wake(self.claims.release(note.holder))
