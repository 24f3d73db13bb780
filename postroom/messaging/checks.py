"""The check at commit that an inbox still is as its transaction saw it.

``CheckInbox`` goes along with the writes of a transaction that found an inbox empty, or has peeked
into one. The commit compares the inbox at its evaluation, so nothing has to be kept for the
comparison, and nothing that is collected is missed. The transaction takes its place in the order of
commits now, and would see the same now.

A message belongs to an inbox from its delivery on, and is delivered after its sender's commit. A
commit counts with all that it sends, so messages on their way are looked for too::

    earlier in this proposal       delivered at its end: among what was sent so far
    due, in the outbox             behind a message that was scheduled: delivered a turn later

A scheduled message that is not due is not there, for any transaction.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from postroom.errors import TransactionConflict, shorten
from postroom.kv import keys
from postroom.messaging.index import read_mail
from postroom.messaging.outbox import Outbox, Parcel
from postroom.messaging.requests import MESSAGE_ID_BYTES, CheckInbox
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry

DUE_LOOKED_AT_ONCE: Final = 1000
"""The number of due messages above which any inbox may get one, and the transaction is retried."""


class _OnTheirWay:
    """The recipients of messages on their way, as far as a proposal has come."""

    def __init__(self, due: set[bytes] | None) -> None:
        self._due = due
        self._sent_to: set[bytes] = set()
        self._looked_at = 0

    def includes(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether ``key`` is about to get a message committed before this transaction."""
        if self._due is None or key in self._due:
            return True
        sent = ctx.sent_before()
        parcels: list[Parcel] = ctx.sent[self._looked_at : sent]
        for due, _, message, _, _ in parcels:
            if due <= ctx.timestamp:
                self._sent_to.add(message.key)
        self._looked_at = sent
        return key in self._sent_to


class InboxChecks:
    """The evaluator of ``CheckInbox``."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def register(self, registry: Registry) -> None:
        """Register the check."""
        registry.writes[CheckInbox] = self.check

    def check(self, ctx: Evaluation, request: CheckInbox) -> Generator[None, None, None]:
        """Evaluate ``CheckInbox``, over several turns if many messages were seen.

        Raises:
            TransactionConflict: the inbox is not as the transaction saw it.
        """
        key, ids = request.key, request.ids
        mail = read_mail(ctx, key)
        if request.messages is not None:
            there = 0 if mail is None else mail.messages
            if there != request.messages or self._on_their_way(ctx).includes(ctx, key):
                raise _changed(key)
        if not ids:
            return
        if mail is None or mail.oldest != ids[0]:
            raise _changed(key)
        prefix = keys.inbox_prefix(key)
        entries = ctx.iterate(prefix + ids[0], prefix + b"\xff" * MESSAGE_ID_BYTES)
        for id_ in ids:
            ctx.steps += 1
            raw, _ = next(entries, (b"", b""))
            if raw[-MESSAGE_ID_BYTES:] != id_:
                raise _changed(key)
            if ctx.is_used_up():
                yield

    def _on_their_way(self, ctx: Evaluation) -> _OnTheirWay:
        """Return the recipients of this proposal, read with its first check."""
        known = ctx.scratch.get(_OnTheirWay)
        if known is None:
            due = self._outbox.recipients_due(ctx, DUE_LOOKED_AT_ONCE)
            ctx.steps += len(due or ())
            ctx.scratch[_OnTheirWay] = known = _OnTheirWay(due)
        on_their_way: _OnTheirWay = known
        return on_their_way


def _changed(key: bytes) -> TransactionConflict:
    return TransactionConflict(
        f"the inbox of {shorten(key)} is not any more as this transaction has seen it; nothing was "
        "changed: try again (run() does)"
    )
