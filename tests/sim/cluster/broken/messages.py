"""Mutations of inboxes, claims, outboxes, delivery and execution."""

from __future__ import annotations

from typing import Any

from postroom.kv import keys
from postroom.messaging import inbox as inboxes
from postroom.messaging import inbox_reads
from postroom.messaging.claims import Claims
from postroom.messaging.inbox import Inboxes
from postroom.messaging.inbox_reads import Peeks
from postroom.messaging.moving import AddingUp, Delivery, Execution, Step
from postroom.messaging.outbox import Outbox
from postroom.messaging.requests import Delivered, Peeked
from postroom.messaging.undelivered import DeadLetters
from postroom.ranges.evaluation import Evaluation
from tests.sim.cluster.broken import Patch


def peek_ignores_later_reaps() -> Patch:
    """Leave out of the past what has been reaped since."""

    class Nothing:
        def decode(self, packed: bytes) -> list[tuple[bytes, bytes]]:
            return []

    return inbox_reads, "_taken", Nothing()


def peek_shows_later_messages() -> Patch:
    """Show messages in the past that came later."""

    class Early:
        def decode(self, stored: bytes) -> Any:
            return Delivered(0, b"", None)

    return inbox_reads, "_delivered", Early()


def peek_leaves_out_the_last() -> Patch:
    """End a page one message early, and say that it was the last one."""
    peek = Peeks.peek

    def shorter(self: Peeks, view: Any, request: Any) -> Any:
        peeked = peek(self, view, request)
        if isinstance(peeked, Peeked) and not peeked.more:
            return Peeked(peeked.messages[:2], False, peeked.timestamp)
        return peeked

    return Peeks, "peek", shorter


def claims_nobody() -> Patch:
    """Hand the messages of one transaction to the next one, too."""
    claim = Claims.claim

    def in_private(
        self: Claims,
        key: bytes,
        transaction_id: bytes,
        ids: Any,
        following: bytes,
        attempts_max: int,
    ) -> None:
        claim(self, key + transaction_id, transaction_id, ids, following, attempts_max)

    return Claims, "claim", in_private


def claims_for_ever() -> Patch:
    """Keep the messages of a transaction that was rolled back."""
    return Claims, "release", lambda self, transaction_id: []


def free_mark_stays() -> Patch:
    """Step over a message that comes in below the free mark."""
    return Claims, "arrived", lambda self, first: None


def reaps_what_is_gone() -> Patch:
    """Commit although another transaction has reaped the message."""
    find = Inboxes._find

    def blind(self: Inboxes, ctx: Any, key: bytes, ids: Any, mail: Any) -> Any:
        prefix = keys.inbox_prefix(key)
        there = [id_ for id_ in ids if ctx.get(prefix + id_) is not None]
        return find(self, ctx, key, there, mail)

    return Inboxes, "_find", blind


def index_forgets_the_first() -> Patch:
    """Name the newest message in the index of inboxes instead of the oldest one."""
    deliver = Inboxes.deliver

    def newest(self: Inboxes, ctx: Any, arrivals: Any) -> int:
        delivered = deliver(self, ctx, arrivals)
        for key, messages in arrivals.items():
            mail = inboxes._mail.decode(ctx.writes[keys.mail_key(key)])
            left = inboxes.InboxIndexEntry(mail.messages, min(messages)[0])
            ctx.writes[keys.mail_key(key)] = inboxes._encode(left)
        return delivered

    return Inboxes, "deliver", newest


def delivers_twice() -> Patch:
    """Keep scheduled messages in the outbox when they are delivered."""
    deliver_due = Delivery.deliver_due

    def without_erasing(self: Delivery, ctx: Any, request: Any) -> Any:
        erase, ctx_type = Evaluation.erase, type(ctx)
        ctx_type.erase = lambda ctx, key: None
        try:
            return deliver_due(self, ctx, request)
        finally:
            ctx_type.erase = erase

    return Delivery, "deliver_due", without_erasing


def outbox_head_runs_ahead() -> Patch:
    """Let the head cursor pass over what is stored while later entries are taken."""
    store = Outbox.store

    def forgetful(self: Outbox, *rest: Any) -> bytes:
        heads = [line.coming_head for line in self._lines]
        key = store(self, *rest)
        for line, head in zip(self._lines, heads, strict=True):
            line.coming_head = head
        return key

    return Outbox, "store", forgetful


def adds_up_across() -> Patch:
    """Add up increments across a write to their key, which came between."""

    def other(self: AddingUp, request: Any, part: Any) -> None:
        self.steps.append(Step(request, [part]))

    return AddingUp, "_other", other


def one_dies_all_die() -> Patch:
    """Make a dead letter of the first part alone if a sum cannot be made; the others are gone."""
    failed = Execution._failed

    def first_only(self: Execution, ctx: Any, parts: Any, error: Any) -> None:
        failed(self, ctx, parts[:1], error)

    return Execution, "_failed", first_only


def buries_nothing() -> Patch:
    """Drop what can never succeed."""
    return DeadLetters, "bury", lambda self, *_: None
