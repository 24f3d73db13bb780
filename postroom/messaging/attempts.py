"""The evaluation of messages that were tried in vain: postponed, buried, counted.

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
attempt that ends well costs no write. A lost attempt is a write of the leaseholder's
(:mod:`.attempt_notes`): the message leaves the inbox and comes back in one step.

Invariant: one write set takes a message that was tried out of the inbox and puts it where it is
from then on. It also writes a record for readers of the past.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.limits import INBOX_BACKOFF_SECONDS_MAX
from postroom.messaging.backoff import due_after, jittered_backoff
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.inbox import Inboxes, tried_by_another
from postroom.messaging.outbox import Outbox
from postroom.messaging.requests import (
    BuryMessages,
    Deliverable,
    Delivered,
    NoteAttempts,
    PostponeMessages,
    Trial,
)
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry

BACKOFF_SECONDS: Final = 1.0
"""The back-off after the first failure, in seconds; each further failure doubles it."""
UNTRIED: Final = Trial(0)

_encode = msgspec.msgpack.encode
_delivered = msgspec.msgpack.Decoder(Delivered)

Stored = list[tuple[bytes, bytes]]
"""The ids of messages, and their stored forms."""


class Attempts:
    """The evaluator of messages that were tried in vain.

    Args:
        inboxes, outbox, dead_letters: those of the range.
        chance: a random number from 0 up to 1.
        since: the timestamp at which this leaseholder began to serve.
    """

    def __init__(
        self,
        inboxes: Inboxes,
        outbox: Outbox,
        dead_letters: DeadLetters,
        chance: Callable[[], float],
        since: Callable[[], int],
    ) -> None:
        self._inboxes = inboxes
        self._outbox = outbox
        self._dead_letters = dead_letters
        self._chance = chance
        self._since = since

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
                waiting.append((id_, self._outbox.store(ctx, due, _origin(id_), entry)))
            ctx.steps += 1
            if ctx.is_used_up():
                yield
        self._put_back(ctx, key, back)
        if waiting and request.hold:
            self._inboxes.hold_up(ctx, key, waiting)

    def _due(self, ctx: Evaluation, seconds: float | None, failed: int) -> int:
        if seconds is None:
            seconds = jittered_backoff(
                BACKOFF_SECONDS, failed - 1, 0.0, INBOX_BACKOFF_SECONDS_MAX, self._chance()
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
        found = yield from self._inboxes.take_out(ctx, key, expected)
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
        prefix = keys.inbox_prefix(key)
        left = [id_ for id_ in request.ids if ctx.get(prefix + id_) is not None]
        if request.what != "lost":
            # The holder (or none) must be the noted one: otherwise another attempt is under way.
            holder, of = request.holder or None, self._inboxes.claims.holder
            left = [id_ for id_ in left if of(key, id_) == holder]
        if not left:
            return back
        for id_, stored in (yield from self._inboxes.take_out(ctx, key, left)):
            message = _delivered.decode(stored)
            trial, is_over = self._noted(request, message)
            if is_over and 0 < request.attempts_max <= trial.attempts:
                self._bury(ctx, key, id_, message, trial)
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
        if before.begun and message.delivered_at < self._since():
            return Trial(before.attempts + 1, request.reason, begun=True), True
        return Trial(before.attempts, before.error, begun=True), False

    # --- their new places

    def _put_back(self, ctx: Evaluation, key: bytes, messages: Stored) -> None:
        if messages:
            ctx.grow(sum(len(stored) for _, stored in messages))
            ctx.count("delivered", self._inboxes.deliver(ctx, {key: messages}))

    def _bury(
        self, ctx: Evaluation, key: bytes, id_: bytes, message: Delivered, trial: Trial
    ) -> None:
        trial = Trial(trial.attempts, trial.error)
        self._dead_letters.bury_message(ctx, _origin(id_), _entry(key, message, trial))


def stale_attempt(message: Delivered, since: int) -> bool:
    """Return whether an attempt was begun by a process that has ended without a word about it."""
    return message.trial is not None and message.trial.begun and message.delivered_at < since


def _trial(message: Delivered) -> Trial:
    return UNTRIED if message.trial is None else message.trial


def _back(ctx: Evaluation, message: Delivered, trial: Trial) -> Delivered:
    """Return a message as it is in the inbox again."""
    known = None if trial == UNTRIED else trial
    return Delivered(ctx.timestamp, message.value, message.headers, known)


def _entry(key: bytes, message: Delivered, trial: Trial) -> Deliverable:
    """Return a message as it is outside of the inbox; its sender is not known any more."""
    return Deliverable(key, message.value, message.headers, b"", b"", trial)


def _origin(id_: bytes) -> bytes:
    """Return the id as outboxes and dead letters have it, without the sender's range."""
    return id_[:8] + id_[16:]


def first_ids(messages: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the ids of messages."""
    return [id_ for id_, _ in messages]
